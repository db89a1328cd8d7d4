#include "engine/compressor/report.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/checkpoint/limited_disk.h"
#include "tests/engine/checkpoint/temporary_folder.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

CompressionReport Example() {
  CompressionReport report{.model = "tiny",
                           .method = "mixed, ratio 5",
                           .calibration = "text",
                           .windows = 2,
                           .window_tokens = 64,
                           .bytes_per_token = 40,
                           .bytes_per_sequence = 4096,
                           .full_bytes_per_token = 200,
                           .predicted_kl = 0.0125};
  CompressionReport::Plane k{
      .full_dims = 48, .energy = {4, 3, 2, 1}, .energy_kept = 0.9, .predicted_kl = 0.01};
  k.layout = {.latent_heads = 1, .segments = {{16, Codec::kInt4}, {16, Codec::kInt2}}};
  CompressionReport::Plane v = k;
  v.layout.segments = {{48, Codec::kInt8}};
  report.layers = {{.k = k, .v = v}, {.k = v, .v = k}};
  return report;
}

TEST(CompressionReport, RatioAtALengthCountsWhatASequenceKeepsOnce) {
  const CompressionReport report = Example();
  EXPECT_DOUBLE_EQ(report.ratio(), 5);
  EXPECT_DOUBLE_EQ(report.ratio_at(2048), 200.0 * 2048 / (40 * 2048 + 4096));
}

TEST(WriteReport, SaysTheSameInBothFilesAndDrawsIt) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.latents";
  ASSERT_TRUE(WriteReport(path, Example()).ok());
  const auto json = nlohmann::json::parse(Contents(path + ".report.json"));
  EXPECT_EQ(json["ratio"], 5);
  EXPECT_EQ(json["ratio_at"]["2048"], Example().ratio_at(2048));
  EXPECT_EQ(json["predicted_kl"], 0.0125);
  EXPECT_EQ(json["layers"][0]["k"]["segments"],
            nlohmann::json::parse(R"([[16, "int4"], [16, "int2"]])"));
  EXPECT_EQ(json["layers"][1]["k"]["dims"], 48);
  EXPECT_EQ(json["layers"][0]["k"]["bytes_per_token"], 16.0 * 6 / 8 + 4);

  const std::string text = Contents(path + ".report.md");
  EXPECT_THAT(text, HasSubstr("| 2048 | 84.0 KiB | 400 KiB | 4.76 |"));
  EXPECT_THAT(text, HasSubstr("on text, 2 windows of 64 tokens,"));
  EXPECT_THAT(text, HasSubstr("keeps 4.00 KiB more"));
  EXPECT_THAT(text, HasSubstr("| 0 | 32 of 48: 16 int4 + 16 int2 | 16.0 | 0.9000 |"));
  EXPECT_THAT(text, HasSubstr("](x.latents.report.svg)"));
  const std::string figure = Contents(path + ".report.svg");
  for (const char* part : {"K: energy", "V: dims by bits", "8 bits", "cut", "Predicted KL"}) {
    EXPECT_THAT(figure, HasSubstr(part));
  }
}

TEST(WriteReport, ACacheBelowItsBudgetNamesBoth) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.latents";
  CompressionReport report = Example();
  report.allowed_bytes_per_token = 40.3;
  EXPECT_EQ(report.OfTheAllowed(), "");
  report.allowed_bytes_per_token = 50;
  ASSERT_TRUE(WriteReport(path, report).ok());
  EXPECT_THAT(
      Contents(path + ".report.md"),
      HasSubstr("40.0 bytes per token of the 50.0 allowed (ratio 4.00), all scales counted; "
                "the uncompressed 16-bit cache takes 200: a ratio of 5.00"));
  EXPECT_EQ(nlohmann::json::parse(Contents(path + ".report.json"))["allowed_bytes_per_token"], 50);
}

TEST(WriteReport, APredictionThatWasFarTooSmallIsExplained) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.latents";
  CompressionReport report = Example();
  for (const bool is_far : {false, true}) {
    report.measured.kl_mean = (is_far ? 1.51 : 1.49) * *report.predicted_kl;
    ASSERT_TRUE(WriteReport(path, report).ok());
    const auto says = HasSubstr("above about 0.01 the prediction is optimistic");
    if (is_far) {
      EXPECT_THAT(Contents(path + ".report.md"), says);
    } else {
      EXPECT_THAT(Contents(path + ".report.md"), Not(says));
    }
  }
}

TEST(WriteReport, AMethodThatPredictsNothingSaysNothing) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.latents";
  CompressionReport report = Example();
  report.predicted_kl.reset();
  ASSERT_TRUE(WriteReport(path, report).ok());
  EXPECT_THAT(Contents(path + ".report.json"), Not(HasSubstr("\"predicted_kl\": 0.0125")));
  EXPECT_THAT(Contents(path + ".report.md"), Not(HasSubstr("Predicted from")));
  EXPECT_THAT(Contents(path + ".report.svg"), Not(HasSubstr("Predicted KL")));
}

TEST(WriteReport, AFullDiskLeavesNoHalfFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.latents";
  {
    const LimitedDisk disk(300);
    EXPECT_THAT(WriteReport(path, Example()).message(), HasSubstr("report.json"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace latentd
