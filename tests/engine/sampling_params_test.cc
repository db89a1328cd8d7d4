#include "engine/sampling_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace latentd {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(SamplingParamsTest, DefaultsAndEveryBoundPass) {
  EXPECT_TRUE(Validate(SamplingParams{}).ok());
  EXPECT_TRUE(Validate(SamplingParams{.temperature = 0.0f,
                                      .top_p = 1e-6f,
                                      .min_p = 1.0f,
                                      .repetition_penalty = 100.0f,
                                      .presence_penalty = -100.0f,
                                      .frequency_penalty = 100.0f,
                                      .num_logprobs = 20})
                  .ok());
}

void ExpectRefused(const SamplingParams& params, const std::string& field,
                   const std::string& value) {
  const absl::Status status = Validate(params);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
  EXPECT_THAT(std::string(status.message()), HasSubstr(field + " is " + value + ","));
}

TEST(SamplingParamsTest, EachFieldHasItsRange) {
  ExpectRefused({.temperature = -0.5f}, "temperature", "-0.5");
  ExpectRefused({.temperature = 101.0f}, "temperature", "101");
  ExpectRefused({.top_k = -1}, "top_k", "-1");
  ExpectRefused({.top_p = 0.0f}, "top_p", "0");
  ExpectRefused({.top_p = 2.0f}, "top_p", "2");
  ExpectRefused({.min_p = -1.0f}, "min_p", "-1");
  ExpectRefused({.min_p = 1.5f}, "min_p", "1.5");
  ExpectRefused({.repetition_penalty = 0.0f}, "repetition_penalty", "0");
  ExpectRefused({.repetition_penalty = 101.0f}, "repetition_penalty", "101");
  ExpectRefused({.presence_penalty = -101.0f}, "presence_penalty", "-101");
  ExpectRefused({.frequency_penalty = 101.0f}, "frequency_penalty", "101");
  ExpectRefused({.num_logprobs = -2}, "num_logprobs", "-2");
  ExpectRefused({.num_logprobs = 21}, "num_logprobs", "21");
}

TEST(SamplingParamsTest, NanAndInfinityAreNeverAllowed) {
  for (float SamplingParams::*field :
       {&SamplingParams::temperature, &SamplingParams::top_p, &SamplingParams::min_p,
        &SamplingParams::repetition_penalty, &SamplingParams::presence_penalty,
        &SamplingParams::frequency_penalty}) {
    for (float value : {kNan, kInf, -kInf}) {
      SamplingParams params;
      params.*field = value;
      EXPECT_EQ(Validate(params).code(), absl::StatusCode::kInvalidArgument) << value;
    }
  }
}

}  // namespace
}  // namespace latentd
