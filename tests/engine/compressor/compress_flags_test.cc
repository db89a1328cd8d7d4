#include "engine/compressor/compress_flags.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<CompressOptions> Parse(const std::vector<std::string>& args) {
  CommandLine line({.program = "latent-compress"});
  const CompressFlags flags(&line);
  const absl::Status parsed = line.Parse(args);
  if (!parsed.ok()) return parsed;
  return flags.Options();
}

MixedOptions Mixed(const std::vector<std::string>& args) {
  const auto options = Parse(args);
  EXPECT_TRUE(options.ok()) << options.status();
  return std::get<MixedOptions>(options->method);
}

TEST(CompressFlags, PresetsAreRatiosOfTheSameMethod) {
  EXPECT_EQ(Mixed({}).ratio, 5.3);
  EXPECT_EQ(Mixed({"--preset", "balanced"}).ratio, 5.3);
  EXPECT_EQ(Mixed({"--preset", "quality"}).ratio, 4);
  const MixedOptions small = Mixed({"--preset", "small", "--group", "all", "--windows", "16"});
  EXPECT_EQ(small.ratio, 7.7);
  EXPECT_THAT(small.widths.widths, ElementsAre(8, 4, 2));
  EXPECT_EQ(small.widths.block_dims, 32);
  EXPECT_EQ(small.sinks, 4);
  EXPECT_TRUE(small.own_page);
  EXPECT_THAT(Parse({"--preset", "tiny"}).status().message(),
              HasSubstr("--preset is \"tiny\", allowed: quality, balanced, small"));
}

TEST(CompressFlags, FlagsThatContradictAPresetAreNamed) {
  for (const std::string flag :
       {"--ratio", "--sinks", "--block", "--k-share", "--rate", "--bits"}) {
    EXPECT_THAT(
        Parse({"--preset", "small", flag, "4"}).status().message(),
        HasSubstr("--preset small says everything about the method: leave it out, or " + flag));
  }
  EXPECT_THAT(Parse({"--preset", "small", "--method", "palu"}).status().message(),
              HasSubstr("--method"));
}

TEST(CompressFlags, AMethodTakesItsOwnFlags) {
  EXPECT_THAT(Parse({"--rate", "0.5", "--bits", "3"}).status().message(),
              HasSubstr("--rate and --bits belong to --method palu, the method is mixed"));
  EXPECT_THAT(Parse({"--method", "palu", "--ratio", "4"}).status().message(),
              HasSubstr("--ratio belongs to --method mixed, the method is palu"));
  EXPECT_THAT(Parse({"--ratio", "4", "--bytes-per-token", "100"}).status().message(),
              HasSubstr("--ratio is 4 and --bytes-per-token is 100"));
  EXPECT_THAT(Parse({"--calibration", "self", "--calibration", "a"}).status().message(),
              HasSubstr("--calibration is self and 1 more"));
  EXPECT_THAT(Parse({"--method", "svd"}).status().message(), HasSubstr("allowed: mixed, palu"));
}

TEST(CompressFlags, MixedReadsItsFlags) {
  const MixedOptions mixed =
      Mixed({"--bytes-per-token", "3000", "--bit-widths", "8,4,3,2", "--block=16",
             "--own-page=coded", "--k-share=0.4", "--sinks=0"});
  EXPECT_EQ(mixed.bytes_per_token, 3000);
  EXPECT_THAT(mixed.widths.widths, ElementsAre(8, 4, 3, 2));
  EXPECT_EQ(mixed.widths.block_dims, 16);
  EXPECT_FALSE(mixed.own_page);
  EXPECT_EQ(mixed.k_share, 0.4);
  EXPECT_EQ(mixed.sinks, 0);
  EXPECT_THAT(Parse({"--own-page", "8"}).status().message(), HasSubstr("allowed: 16, coded"));
  EXPECT_THAT(Parse({"--bit-widths", "8,x"}).status().message(), HasSubstr("\"8,x\""));
}

TEST(CompressFlags, PaluReadsItsFlags) {
  const auto options =
      Parse({"--method=palu", "--rate=0.3", "--bits=3", "--allocate=fisher-rms", "--k-dims=0.4",
             "--no-hadamard", "--sinks=4", "--calibration=a", "--calibration=b", "--seed=7"});
  ASSERT_TRUE(options.ok()) << options.status();
  const auto& palu = std::get<PaluOptions>(options->method);
  EXPECT_EQ(palu.rate, 0.3);
  EXPECT_EQ(palu.bits, 3);
  EXPECT_EQ(palu.allocation, RankAllocation::kFisherRms);
  EXPECT_EQ(palu.k_dims, 0.4);
  EXPECT_FALSE(palu.hadamard);
  EXPECT_EQ(palu.sinks, 4);
  EXPECT_EQ(options->seed, 7u);
  EXPECT_THAT(options->calibration, ElementsAre("a", "b"));
  EXPECT_EQ(std::get<PaluOptions>(Parse({"--method=palu"})->method).sinks, 0);
}

TEST(CompressFlags, SelfIsNoFile) {
  EXPECT_TRUE(Parse({"--calibration", "self"})->calibration.empty());
  EXPECT_EQ(Parse({})->windows, 48);
  EXPECT_EQ(Parse({})->window_tokens, 0);
}

}  // namespace
}  // namespace latentd
