#include "engine/compressor/compress.h"

#include <fstream>
#include <iterator>

#include "engine/checkpoint/latents_file.h"
#include "engine/text/gguf_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/checkpoint/limited_disk.h"
#include "tests/engine/checkpoint/temporary_folder.h"
#include "tests/engine/text/text_data.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

absl::Status Ignore(std::string_view, double) { return absl::OkStatus(); }

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

class CompressTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const GgufVocabulary vocabulary = TinyByteLevel();
    model_ = new std::string(WriteTinyModel({.vocab = static_cast<int>(vocabulary.tokens.size())}));
    std::ofstream(*model_ + "/tokenizer.json") << TokenizerJsonOf(vocabulary).value();
  }
  static void TearDownTestSuite() { delete model_; }

  CompressOptions Options(const std::string& name) const {
    return {.model = {.model = *model_, .threads = 1},
            .out = folder_.path() + "/" + name,
            .windows = 3,
            .window_tokens = 70,
            .seed = 5,
            .group = "all"};
  }
  size_t Files() const {
    return std::distance(std::filesystem::directory_iterator(folder_.path()), {});
  }

  static std::string* model_;
  const TemporaryFolder folder_;
};
std::string* CompressTest::model_ = nullptr;

TEST_F(CompressTest, WritesLatentsThatFitTheModelAndReportsWhatTheyTake) {
  const CompressOptions options = Options("x.latents");
  const auto report = Compress(options, Ignore);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(Files(), 3u);
  const auto checkpoint = Checkpoint::Open(*model_);
  ASSERT_TRUE(checkpoint.ok());
  const auto latents = OpenLatents(options.out, **checkpoint);
  ASSERT_TRUE(latents.ok()) << latents.status();
  EXPECT_EQ((*latents)->method(), "palu, rate 0.5, 4 bits, groups of all KV heads");
  int64_t block_bytes = 0;
  for (const LatentLayer& layer : (*latents)->layers) block_bytes += layer.cache.block_bytes();
  EXPECT_EQ(report->bytes_per_token, static_cast<double>(block_bytes) / kBlockTokens);

  const auto json = nlohmann::json::parse(Contents(options.out + ".report.json"));
  EXPECT_EQ(json["bytes_per_token"], report->bytes_per_token);
  EXPECT_EQ(json["full_bytes_per_token"], (*checkpoint)->config().full_bytes_per_token());
  EXPECT_EQ(json["layers"].size(), 2u);
  EXPECT_EQ(json["layers"][1]["v"]["dims"], 16);
  EXPECT_THAT(Contents(options.out + ".report.md"), HasSubstr("| 1 | 1 x 16 minmax4 |"));
}

TEST_F(CompressTest, TheSameSeedGivesTheSameBytesForEveryNumberOfThreads) {
  CompressOptions options = Options("one");
  ASSERT_TRUE(Compress(options, Ignore).ok());
  const std::string one = Contents(options.out);
  options.model.threads = 2;
  ASSERT_TRUE(Compress(options, Ignore).ok());  // over the older file
  EXPECT_EQ(Contents(options.out), one);
  options.seed = 6;
  ASSERT_TRUE(Compress(options, Ignore).ok());
  EXPECT_NE(Contents(options.out), one);
}

TEST_F(CompressTest, CalibratesOnFiles) {
  CompressOptions options = Options("files");
  std::string text;
  while (text.size() < 300) text += "hello world, ";
  options.calibration = {folder_.Write("text", text)};
  const auto report = Compress(options, Ignore);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->calibration, HasSubstr("/text"));
}

TEST_F(CompressTest, WorkThatIsEndedLeavesNothing) {
  for (const std::string end : {"the model writes its calibration text",
                                "measuring the inputs of every layer", "factorising"}) {
    const auto report = Compress(Options("x"), [&](std::string_view what, double) {
      return what == end ? absl::CancelledError("enough") : absl::OkStatus();
    });
    EXPECT_EQ(report.status().code(), absl::StatusCode::kCancelled) << end;
    EXPECT_EQ(Files(), 0u) << end;
  }
}

TEST_F(CompressTest, APathThatCannotBeWrittenIsRefusedBeforeAnyWork) {
  CompressOptions options = Options("none/x");
  const auto report =
      Compress(options, [](std::string_view, double) { return absl::InternalError("worked"); });
  EXPECT_THAT(report.status().message(), HasSubstr("none/x"));
  EXPECT_EQ(Files(), 0u);
  options.out.clear();
  EXPECT_THAT(Compress(options, Ignore).status().message(), HasSubstr("--out is missing"));
}

TEST_F(CompressTest, ReplacesLatentsButNoOtherFile) {
  CompressOptions options = Options("x.latents");
  ASSERT_TRUE(Compress(options, Ignore).ok());
  EXPECT_TRUE(Compress(options, Ignore).ok());
  options.out = *model_ + "/model.safetensors";
  const std::string weights = Contents(options.out);
  const auto refused = Compress(options, [](std::string_view, double) {
    ADD_FAILURE() << "work has begun";
    return absl::OkStatus();
  });
  EXPECT_THAT(refused.status().message(), HasSubstr("is there and is no latents file"));
  EXPECT_EQ(Contents(options.out), weights);
  options.out = folder_.path();
  EXPECT_TRUE(absl::IsInvalidArgument(Compress(options, Ignore).status()));
}

TEST_F(CompressTest, AFullDiskIsAnErrorAndLeavesNothing) {
  const CompressOptions options = Options("x.latents");
  {
    const LimitedDisk disk(4000);
    EXPECT_THAT(Compress(options, Ignore).status().message(),
                HasSubstr("cannot write " + options.out));
  }
  EXPECT_EQ(Files(), 0u);
}

TEST_F(CompressTest, WrongOptionsNameTheFlagAndBothNumbers) {
  CompressOptions options = Options("x");
  options.window_tokens = 300;
  EXPECT_THAT(Compress(options, Ignore).status().message(),
              HasSubstr("--window is 300, the model was made for 256"));
  options = Options("x");
  options.group = "some";
  EXPECT_THAT(Compress(options, Ignore).status().message(),
              HasSubstr("--group is \"some\", allowed: all, or a divisor of the model's 2"));
  options = Options("x");
  options.model.model.clear();
  EXPECT_THAT(Compress(options, Ignore).status().message(), HasSubstr("--model is missing"));
  EXPECT_EQ(Files(), 0u);
}

}  // namespace
}  // namespace latentd
