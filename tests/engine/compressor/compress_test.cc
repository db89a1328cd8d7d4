#include "engine/compressor/compress.h"

#include <fstream>
#include <iterator>

#include "absl/strings/str_format.h"
#include "engine/checkpoint/latents_file.h"
#include "engine/compressor/calibration.h"
#include "engine/evaluation/perplexity.h"
#include "engine/local_engine.h"
#include "engine/text/gguf_tokenizer.h"
#include "engine/text/shingles.h"
#include "engine/text/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/checkpoint/limited_disk.h"
#include "tests/engine/checkpoint/temporary_folder.h"
#include "tests/engine/text/text_data.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using ::testing::AllOf;
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
            .group = "all",
            .method = MixedOptions{.ratio = 4}};
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
  EXPECT_EQ(Files(), 4u);  // and three of the report
  const auto checkpoint = Checkpoint::Open(*model_);
  ASSERT_TRUE(checkpoint.ok());
  const auto latents = OpenLatents(options.out, **checkpoint);
  ASSERT_TRUE(latents.ok()) << latents.status();
  EXPECT_EQ((*latents)->method,
            absl::StrFormat("mixed, ratio %.3g, 8/4/2 bits in blocks of 32, groups of all KV "
                            "heads, 4 exact sinks, own page in 16 bits",
                            report->ratio()));
  EXPECT_FALSE((*latents)->shingles.empty());
  int64_t block_bytes = 0, sequence_bytes = 0;
  for (const LatentLayer& layer : (*latents)->layers) {
    block_bytes += layer.cache.block_bytes();
    sequence_bytes += layer.cache.sequence_bytes();
    EXPECT_EQ(layer.cache.sinks, 4);
    EXPECT_TRUE(layer.cache.own_page);
    EXPECT_NE(layer.v_mean.data, nullptr);
  }
  EXPECT_EQ(report->bytes_per_token, static_cast<double>(block_bytes) / kBlockTokens);
  EXPECT_EQ(report->bytes_per_sequence, static_cast<double>(sequence_bytes));
  EXPECT_EQ(report->allowed_bytes_per_token, report->full_bytes_per_token / 4);
  EXPECT_LE(report->bytes_per_token, *report->allowed_bytes_per_token);
  EXPECT_GT(*report->predicted_kl, 0);
  EXPECT_GT(report->measured.kl_mean, 0);
  EXPECT_EQ(report->measured.tokens, 2 * 69);

  const auto json = nlohmann::json::parse(Contents(options.out + ".report.json"));
  EXPECT_EQ(json["peak_bytes"], report->peak_bytes);
  EXPECT_GT(report->peak_bytes, WorkBytes(options, (*checkpoint)->config()));
  EXPECT_EQ(json["bytes_per_token"], report->bytes_per_token);
  EXPECT_EQ(json["full_bytes_per_token"], (*checkpoint)->config().full_bytes_per_token());
  EXPECT_EQ(json["layers"].size(), 2u);
}

TEST_F(CompressTest, TheNormsOfRebuiltKeysAreInTheBudget) {
  const GgufVocabulary vocabulary = TinyByteLevel();
  CompressOptions options = Options("x.latents");
  options.model.model =
      WriteTinyModel({.family = "qwen3", .vocab = static_cast<int>(vocabulary.tokens.size())});
  std::ofstream(options.model.model + "/tokenizer.json") << TokenizerJsonOf(vocabulary).value();
  const auto report = Compress(options, Ignore);
  ASSERT_TRUE(report.ok()) << report.status();
  // 256 bytes, of them 8 for norms.
  EXPECT_LE(report->bytes_per_token, report->full_bytes_per_token / 4);
  EXPECT_GE(report->bytes_per_token, report->full_bytes_per_token / 4 - 8);
  const auto checkpoint = Checkpoint::Open(options.model.model);
  ASSERT_TRUE(checkpoint.ok());
  const auto latents = OpenLatents(options.out, **checkpoint);
  ASSERT_TRUE(latents.ok()) << latents.status();
  for (const LatentLayer& layer : (*latents)->layers) EXPECT_EQ(layer.cache.key_norms, 2);
}

TEST_F(CompressTest, PaluTakesTheGradientsThatItsRanksNeed) {
  for (const RankAllocation allocation :
       {RankAllocation::kUniform, RankAllocation::kFisherSum, RankAllocation::kFisherRms}) {
    CompressOptions options = Options("palu");
    options.method = PaluOptions{.rate = 0.25, .bits = 3, .allocation = allocation, .sinks = 2};
    const auto report = Compress(options, Ignore);
    ASSERT_TRUE(report.ok()) << report.status();
    int dims = 0;
    for (const CompressionReport::Layer& layer : report->layers) {
      dims += layer.k.layout.dims() + layer.v.layout.dims();
    }
    EXPECT_EQ(dims, 96) << "three quarters of 4 x 32";
    EXPECT_EQ(report->layers[0].k.layout.segments[0].codec, Codec::kMinMax3);
    EXPECT_FALSE(report->predicted_kl.has_value());
  }
}

// Ended at any report of progress and taken up again: the same bytes, and nothing half-written on
// the way.
TEST_F(CompressTest, WorkThatIsEndedGoesOnToTheSameBytes) {
  CompressOptions options = Options("whole");
  ASSERT_TRUE(Compress(options, Ignore).ok());
  const std::string whole = Contents(options.out);
  std::vector<std::string> stages;
  for (int end = 0;; ++end) {
    const TemporaryFolder folder;
    options.out = folder.path() + "/x";
    int calls = 0;
    std::string stage;
    const auto report = Compress(options, [&](std::string_view what, double) {
      stage = what;
      return calls++ == end ? absl::CancelledError("enough") : absl::OkStatus();
    });
    if (report.ok()) break;
    EXPECT_TRUE(absl::IsCancelled(report.status())) << report.status();
    EXPECT_FALSE(std::filesystem::exists(options.out)) << stage;
    const bool kept = std::filesystem::exists(options.out + ".partial");
    EXPECT_EQ(report.status().message(),
              kept ? "enough; the same command goes on from here" : "enough");
    if (stages.empty() || stages.back() != stage) stages.push_back(stage);
    if (end % 7 != 0) continue;
    bool says = false;
    const auto rest = Compress(options, [&](std::string_view what, double) {
      says |= what == "measuring every layer, going on from " + options.out + ".partial";
      return absl::OkStatus();
    });
    ASSERT_TRUE(rest.ok()) << rest.status();
    EXPECT_EQ(rest->resumed, kept) << stage << " " << end;
    EXPECT_EQ(says, kept) << stage << " " << end;
    EXPECT_EQ(Contents(options.out), whole) << stage << " " << end;
    EXPECT_FALSE(std::filesystem::exists(options.out + ".partial"));
  }
  EXPECT_EQ(stages, (std::vector<std::string>{"the model writes its calibration text",
                                              "measuring every layer", "factorising",
                                              "measuring the loss"}));
}

TEST_F(CompressTest, StatisticsServeSeveralCaches) {
  CompressOptions options = Options("one");
  options.statistics = folder_.path() + "/statistics";
  ASSERT_TRUE(Compress(options, Ignore).ok());
  ASSERT_TRUE(std::filesystem::exists(options.statistics));
  EXPECT_FALSE(std::filesystem::exists(options.out + ".partial"));
  options.out = folder_.path() + "/two";
  options.method = MixedOptions{.ratio = 2.5};
  bool measured = false;
  const auto report = Compress(options, [&](std::string_view what, double share) {
    measured |= what.starts_with("measuring every layer") && share < 1;
    return absl::OkStatus();
  });
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(measured);

  CompressOptions alone = Options("two-alone");
  alone.method = options.method;
  ASSERT_TRUE(Compress(alone, Ignore).ok());
  EXPECT_EQ(Contents(options.out), Contents(alone.out));
  // Those of another text are refused.
  options.seed = 6;
  EXPECT_THAT(Compress(options, Ignore).status().message(), HasSubstr(options.statistics));
}

TEST_F(CompressTest, TheSeedMakesTheText) {
  CompressOptions options = Options("one");
  ASSERT_TRUE(Compress(options, Ignore).ok());
  const std::string one = Contents(options.out);
  ASSERT_TRUE(Compress(options, Ignore).ok());  // over the older file
  EXPECT_EQ(Contents(options.out), one);
  options.seed = 6;
  ASSERT_TRUE(Compress(options, Ignore).ok());
  EXPECT_NE(Contents(options.out), one);
}

TEST_F(CompressTest, CalibratesOnFiles) {
  CompressOptions options = Options("files");
  std::string text;
  for (int i = 0; text.size() < 5000; ++i) text += "hello world " + std::to_string(i * i) + ", ";
  options.calibration = {folder_.Write("text", text)};
  const auto report = Compress(options, Ignore);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->calibration, HasSubstr("/text"));

  // Of five windows two are not calibrated on, and the loss is measured on those.
  const auto checkpoint = Checkpoint::Open(*model_);
  ASSERT_TRUE(checkpoint.ok());
  const auto tokenizer = Tokenizer::Create((*checkpoint)->tokenizer());
  ASSERT_TRUE(tokenizer.ok());
  const auto windows = WindowsFromFiles(options.calibration, **tokenizer, 5, 70);
  ASSERT_TRUE(windows.ok()) << windows.status();
  const auto& w = *windows;
  EXPECT_EQ((*OpenLatents(options.out, **checkpoint))->shingles, ShinglesOf({w[0], w[1], w[3]}));
  const auto full = CreateLocalEngine(**checkpoint, nullptr, *CreateCpuOps(1), {.num_blocks = 2});
  ASSERT_TRUE(full.ok()) << full.status();
  const auto expected = MeasurePerplexity(**full, {{.tokens = w[2]}, {.tokens = w[4]}}, 1,
                                          [](double) { return absl::OkStatus(); });
  EXPECT_NEAR(report->measured.reference_perplexity, expected->perplexity, 1e-9);

  options.calibration = {folder_.Write("short", "hello")};
  EXPECT_THAT(Compress(options, Ignore).status().message(),
              AllOf(HasSubstr("/short has "), HasSubstr("its 5 windows of 70 need 350"),
                    HasSubstr("(--windows is 3, 2 more measure the loss)")));
}

TEST_F(CompressTest, APathThatCannotBeWrittenIsRefusedBeforeAnyWork) {
  CompressOptions options = Options("none/x");
  const auto report =
      Compress(options, [](std::string_view, double) { return absl::InternalError("worked"); });
  EXPECT_THAT(report.status().message(), HasSubstr("none/x"));
  EXPECT_EQ(Files(), 0u);
  options.out.clear();
  EXPECT_THAT(Compress(options, Ignore).status().message(), HasSubstr("--out is missing"));
  options = Options("x");
  options.statistics = folder_.path() + "/none/statistics";
  const auto unkept =
      Compress(options, [](std::string_view, double) { return absl::InternalError("worked"); });
  EXPECT_THAT(unkept.status().message(), HasSubstr("none/statistics"));
  options.statistics = options.out;
  EXPECT_THAT(Compress(options, Ignore).status().message(), HasSubstr("--statistics and --out"));
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

TEST_F(CompressTest, AFlagThatIsWrongWhateverTheModelIsKnownBeforeItIsOpened) {
  CompressOptions options = Options("x");
  options.model.model = folder_.path() + "/none";
  EXPECT_TRUE(ValidateFlags(options).ok());
  options.statistics = options.out;
  EXPECT_THAT(ValidateFlags(options).message(), HasSubstr("--statistics and --out are both"));
  options.out.clear();
  EXPECT_THAT(ValidateFlags(options).message(), HasSubstr("--out is missing"));
  options.model.model.clear();
  EXPECT_THAT(ValidateFlags(options).message(), HasSubstr("--model is missing"));
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
  options.window_tokens = 4;
  EXPECT_THAT(Compress(options, Ignore).status().message(),
              HasSubstr("--window is 4, it must be more than --sinks, which is 4"));
  options.method = PaluOptions{};
  options.window_tokens = 1;
  EXPECT_THAT(Compress(options, Ignore).status().message(),
              HasSubstr("--window is 1, a window has at least 2 tokens"));
  options = Options("x");
  options.method = MixedOptions{.ratio = 60};
  EXPECT_THAT(Compress(options, Ignore).status().message(),
              HasSubstr("--ratio is 60, 4.26667 bytes per token"));
  options = Options("x");
  options.model.model.clear();
  EXPECT_THAT(Compress(options, Ignore).status().message(), HasSubstr("--model is missing"));
  EXPECT_EQ(Files(), 0u);
}

TEST(WorkBytes, CountsStatisticsAndBases) {
  ModelConfig config;
  config.num_layers = 32;
  config.hidden_dim = 4000;
  config.num_kv_heads = 32;
  config.head_dim = 128;
  const int64_t square = int64_t{2} * 32 * 4096 * 4096 * 8;  // of every plane
  CompressOptions options{.method = MixedOptions{.heads_per_group = 4}};
  EXPECT_EQ(WorkBytes(options, config), 2 * square + 2 * square / 8);
  options.method = PaluOptions{};
  EXPECT_EQ(WorkBytes(options, config), square);
  options.method = PaluOptions{.allocation = RankAllocation::kFisherSum};
  EXPECT_EQ(WorkBytes(options, config), square + square / 4096 * 4000);
}

}  // namespace
}  // namespace latentd
