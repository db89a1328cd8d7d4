#include "engine/checkpoint/latents_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/safetensors_file.h"
#include "engine/checkpoint/safetensors_writer.h"
#include "tests/engine/checkpoint/temporary_folder.h"
#include "tests/testing/random_values.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

// Latents for the tiny llama (2 layers, 2 KV heads of 16 dims, hidden 32): K in one latent head of
// 16 + 16 dims, V in two of 16, exact sinks, own pages, a mean of K in layer 1. And the pieces of
// their file, to be spoiled one at a time.
class LatentsTest : public testing::Test {
 protected:
  void SetUp() override {
    base_ = *Checkpoint::Open(WriteTinyModel({}));
    contents_ = {.method = "by hand", .shingles = {0, 7, 4294967295}};
    for (int l = 0; l < 2; ++l) {
      LatentLayer layer{.cache = {.sinks = 4, .sink_dims = 32, .own_page = true}};
      layer.cache.k = {.latent_heads = 1, .segments = {{16, Codec::kInt8}, {16, Codec::kInt4}}};
      layer.cache.v = {
          .latent_heads = 2, .segments = {{16, Codec::kF16}}, .order = TileOrder::kTokenMajor};
      layer.k_down = Factor(32, 32);
      layer.k_up = Factor(32, 32);
      layer.v_down = Factor(32, 32);
      layer.v_up = Factor(32, 16);
      if (l == 1) {
        layer.k_mean = Factor(1, 32);
        layer.k_offset = Factor(1, 32);
      }
      contents_.layers.push_back(layer);
    }
    path_ = folder_.path() + "/x.latents";
    ASSERT_TRUE(WriteLatents(path_, Fingerprint(*base_), contents_).ok());
  }

  TensorView Factor(int64_t rows, int64_t cols) {
    factors_.push_back(GaussianValues(rows * cols, factors_.size() + 1));
    return {.dtype = DType::kF32,
            .rows = rows,
            .cols = cols,
            .data = reinterpret_cast<const std::byte*>(factors_.back().data())};
  }

  // The file again, with its facts and its tensors changed.
  template <typename ChangeFacts, typename ChangeTensors>
  std::string ErrorAfter(ChangeFacts change_facts, ChangeTensors change_tensors) {
    const auto file = SafetensorsFile::Open(path_);
    Json facts = Json::parse(file->metadata.at("latentd"));
    std::vector<NamedTensor> tensors;
    for (const auto& [name, stored] : file->tensors) {
      tensors.push_back({.name = name,
                         .view = {.dtype = *stored.dtype,
                                  .rows = stored.shape[0],
                                  .cols = stored.shape[1],
                                  .data = stored.data.data()}});
    }
    change_facts(facts);
    change_tensors(tensors);
    const std::string path = folder_.path() + "/spoiled.latents";
    EXPECT_TRUE(WriteSafetensors(path, tensors, {{"latentd", facts.dump()}}).ok());
    return std::string(OpenLatents(path, *base_).status().message());
  }
  template <typename ChangeFacts>
  std::string ErrorAfterFacts(ChangeFacts change) {
    return ErrorAfter(change, [](auto&) {});
  }
  template <typename ChangeTensors>
  std::string ErrorAfterTensors(ChangeTensors change) {
    return ErrorAfter([](Json&) {}, change);
  }

  static std::vector<NamedTensor>::iterator Find(std::vector<NamedTensor>& tensors,
                                                 std::string_view name) {
    return std::find_if(tensors.begin(), tensors.end(),
                        [&](const NamedTensor& tensor) { return tensor.name == name; });
  }

  std::unique_ptr<Checkpoint> base_;
  TemporaryFolder folder_;
  std::string path_;
  std::vector<std::vector<float>> factors_;
  Latents contents_;
};

TEST_F(LatentsTest, WhatIsWrittenReadsBack) {
  const auto latents = OpenLatents(path_, *base_);
  ASSERT_TRUE(latents.ok()) << latents.status();
  EXPECT_EQ((*latents)->method, "by hand");
  EXPECT_EQ((*latents)->shingles, contents_.shingles);
  ASSERT_EQ((*latents)->layers.size(), 2u);
  for (int l = 0; l < 2; ++l) {
    const LatentLayer& read = (*latents)->layers[l];
    const LatentLayer& written = contents_.layers[l];
    EXPECT_EQ(read.cache, written.cache);
    EXPECT_EQ(read.k_mean.data != nullptr, l == 1);
    EXPECT_EQ(read.v_mean.data, nullptr);
    for (const auto view : {&LatentLayer::k_down, &LatentLayer::k_up, &LatentLayer::v_down,
                            &LatentLayer::v_up, &LatentLayer::k_mean, &LatentLayer::k_offset}) {
      if ((written.*view).data == nullptr) continue;
      ASSERT_EQ((read.*view).rows, (written.*view).rows);
      ASSERT_EQ((read.*view).cols, (written.*view).cols);
      EXPECT_EQ(std::memcmp((read.*view).data, (written.*view).data, (written.*view).bytes()), 0);
    }
  }
}

TEST_F(LatentsTest, RefusesAnotherBaseModelWithBothFingerprints) {
  const auto other = *Checkpoint::Open(WriteTinyModel({.seed = 2}));
  const absl::Status status = OpenLatents(path_, *other).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(path_ + ": these latents were made for another model, with fingerprint " +
                        Fingerprint(*base_) + "; the model \"" + other->config().name + "\" has " +
                        Fingerprint(*other)));
}

TEST_F(LatentsTest, RefusesFactsThatDoNotFit) {
  EXPECT_EQ(ErrorAfterFacts([](Json&) {}), "");
  EXPECT_THAT(ErrorAfterFacts([](Json& f) { f["version"] = 1; }), HasSubstr("version 1"));
  EXPECT_THAT(ErrorAfterFacts([](Json& f) { f = Json::array(); }), HasSubstr("version 0"));
  EXPECT_THAT(ErrorAfterFacts([](Json& f) { f["layers"].erase(1); }),
              AllOf(HasSubstr("1 layers"), HasSubstr("has 2")));
  EXPECT_THAT(ErrorAfterFacts([](Json& f) { f["layers"] = 3; }), HasSubstr("layers"));
  EXPECT_THAT(ErrorAfterFacts([](Json& f) { f["layers"][0] = 3; }), HasSubstr("layers.0.k"));
  EXPECT_THAT(ErrorAfterFacts([](Json& f) { f["layers"][0].erase("v"); }), HasSubstr("layers.0.v"));
  EXPECT_THAT(ErrorAfterFacts([](Json& f) { f["sinks"] = 65; }),
              AllOf(HasSubstr("sinks is 65"), HasSubstr("0 to 64")));
  EXPECT_THAT(ErrorAfterFacts([](Json& f) { f["sinks"] = -1; }), HasSubstr("-1"));
  EXPECT_THAT(ErrorAfterFacts([](Json& f) { f.erase("sinks"); }), HasSubstr("sinks"));
  EXPECT_THAT(ErrorAfterFacts([](Json& f) { f["own_page"] = "yes"; }), HasSubstr("own_page"));
  EXPECT_THAT(ErrorAfterFacts([](Json& f) { f["shingles"] = 3; }), HasSubstr("shingles"));
  EXPECT_THAT(ErrorAfterFacts([](Json& f) {
                f["shingles"] = {1, int64_t{1} << 32};
              }),
              HasSubstr("4294967296"));
  EXPECT_THAT(ErrorAfterFacts([](Json& f) {
                f["shingles"] = {9, 9};
              }),
              HasSubstr("the shingle 9 follows 9"));
  const auto k = [](Json& f) -> Json& { return f["layers"][1]["k"]; };
  EXPECT_THAT(ErrorAfterFacts([&](Json& f) { k(f)["latent_heads"] = 3; }),
              AllOf(HasSubstr("layers.1.k"), HasSubstr("3"), HasSubstr("2 KV heads")));
  EXPECT_THAT(ErrorAfterFacts([&](Json& f) { k(f)["latent_heads"] = 0; }), HasSubstr("is 0"));
  EXPECT_THAT(ErrorAfterFacts([&](Json& f) { k(f)["segments"] = Json::array(); }),
              HasSubstr("0 segments"));
  EXPECT_THAT(ErrorAfterFacts([&](Json& f) { k(f)["segments"][0] = 5; }), HasSubstr("segment"));
  EXPECT_THAT(ErrorAfterFacts([&](Json& f) { k(f)["segments"][0][0] = 17; }), HasSubstr("17"));
  EXPECT_THAT(ErrorAfterFacts([&](Json& f) { k(f)["segments"][0][0] = -16; }), HasSubstr("-16"));
  EXPECT_THAT(ErrorAfterFacts([&](Json& f) { k(f)["segments"][0][0] = int64_t{1} << 40; }),
              HasSubstr("1099511627776"));
  EXPECT_THAT(ErrorAfterFacts([&](Json& f) { k(f)["segments"][0][1] = "int5"; }),
              HasSubstr("int5"));
  EXPECT_THAT(ErrorAfterFacts([&](Json& f) { k(f)["segments"][0][0] = 32; }),
              AllOf(HasSubstr("layers.1.k_down"), HasSubstr("[32, 32]"), HasSubstr("[48, 32]")));
}

TEST_F(LatentsTest, RefusesTensorsThatDoNotFit) {
  EXPECT_THAT(ErrorAfterTensors([](auto& tensors) { tensors.pop_back(); }),
              HasSubstr("layers.1.v_up is missing"));
  EXPECT_THAT(ErrorAfterTensors([](auto& tensors) {
                auto extra = tensors.back();
                extra.name = "layers.1.k_bias";
                tensors.push_back(extra);
              }),
              AllOf(HasSubstr("11 tensors"), HasSubstr("10")));
  EXPECT_THAT(ErrorAfterTensors([](auto& tensors) {
                tensors[0].view.rows *= 2;
                tensors[0].view.cols /= 2;
              }),
              AllOf(HasSubstr("layers.0.k_down"), HasSubstr("[64, 16]")));
  EXPECT_THAT(ErrorAfterTensors([](auto& tensors) { tensors[1].view.dtype = DType::kBF16; }),
              AllOf(HasSubstr("layers.0.k_up"), HasSubstr("BF16")));
}

// Half of a mean, and one of another size.
TEST_F(LatentsTest, RefusesMeansThatDoNotFit) {
  for (const std::string name : {"layers.1.k_mean", "layers.1.k_offset"}) {
    EXPECT_THAT(ErrorAfterTensors([&](auto& tensors) { tensors.erase(Find(tensors, name)); }),
                HasSubstr(name + " is missing"));
    EXPECT_THAT(ErrorAfterTensors([&](auto& tensors) { Find(tensors, name)->view.cols = 16; }),
                AllOf(HasSubstr(name), HasSubstr("[1, 16]"), HasSubstr("[1, 32]")));
  }
}

// Of every tensor the last value, which is the first to be missed.
TEST_F(LatentsTest, RefusesValuesThatPagesCannotHold) {
  const auto file = SafetensorsFile::Open(path_);
  for (const auto& [name, stored] : file->tensors) {
    const int64_t rows = stored.shape[0], cols = stored.shape[1];
    for (const auto& [value, dtype, text] : {std::tuple(std::nanf(""), DType::kF32, "nan"),
                                             {-INFINITY, DType::kF32, "-inf"},
                                             {65536.0f, DType::kF32, "65536"},
                                             {65504.0f, DType::kF32, ""},
                                             {std::nanf(""), DType::kF16, "nan"},
                                             {INFINITY, DType::kF16, "inf"},
                                             {-65504.0f, DType::kF16, ""}}) {
      std::vector<float> values = GaussianValues(rows * cols, 1);
      values.back() = value;
      std::vector<uint16_t> halves(values.size());
      std::transform(values.begin(), values.end(), halves.begin(), FloatToHalf);
      const void* data = dtype == DType::kF32 ? static_cast<const void*>(values.data())
                                              : static_cast<const void*>(halves.data());
      const std::string error = ErrorAfterTensors([&](auto& tensors) {
        TensorView& view = Find(tensors, name)->view;
        view.dtype = dtype;
        view.data = static_cast<const std::byte*>(data);
      });
      if (*text == 0) {  // a value that may be there: only the checksum knows it for another
        EXPECT_THAT(error, HasSubstr("the file is damaged")) << name;
        continue;
      }
      EXPECT_THAT(error, HasSubstr(absl::StrCat(name, ": value ", cols - 1, " of row ", rows - 1,
                                                " is ", text, ", it must be between -65504")));
    }
  }
}

// Any bit of any number, though it stays a number that could be there.
TEST_F(LatentsTest, RefusesDamagedNumbers) {
  const auto file = SafetensorsFile::Open(path_);
  for (const auto& [name, stored] : file->tensors) {
    for (const size_t byte : {size_t{0}, stored.data.size() / 2 + 1, stored.data.size() - 4}) {
      std::vector<std::byte> spoiled(stored.data.begin(), stored.data.end());
      spoiled[byte] ^= std::byte{1};
      EXPECT_THAT(ErrorAfter([](Json&) {},
                             [&](std::vector<NamedTensor>& tensors) {
                               for (NamedTensor& tensor : tensors) {
                                 if (tensor.name == name) tensor.view.data = spoiled.data();
                               }
                             }),
                  HasSubstr("the file is damaged"))
          << name << " " << byte;
    }
  }
}

TEST_F(LatentsTest, RefusesOtherFiles) {
  EXPECT_THAT(std::string(OpenLatents(folder_.Write("text", "abc"), *base_).status().message()),
              HasSubstr("3 bytes"));
  const std::string plain = folder_.path() + "/plain.safetensors";
  ASSERT_TRUE(WriteSafetensors(plain, {}, {}).ok());
  EXPECT_THAT(std::string(OpenLatents(plain, *base_).status().message()),
              HasSubstr("no latents file"));
}

}  // namespace
}  // namespace latentd
