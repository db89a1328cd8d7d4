#include "scheduler/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "scheduler/scheduler_config.h"
#include "tests/testing/recording_sink.h"

namespace latentd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A request that passes with nothing to spare: 200 + 57 tokens, of which all but the last lie in 4
// blocks.
const EngineInfo kInfo = {.vocab_size = 100, .max_context = 257, .num_blocks = 4};

Request MakeRequest() {
  Request request;
  request.id = "a";
  request.prompt.assign(200, 99);
  request.max_new_tokens = 57;
  request.sink = std::make_shared<RecordingSink>();
  return request;
}

void ExpectRefused(const std::function<void(Request&)>& change, const std::string& a,
                   const std::string& b, const EngineInfo& info = kInfo) {
  Request request = MakeRequest();
  change(request);
  const absl::Status status = CheckRequest(request, info);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(a));
  EXPECT_THAT(std::string(status.message()), HasSubstr(b));
}

TEST(AdmissionTest, WhatFitsExactlyPasses) { EXPECT_TRUE(CheckRequest(MakeRequest(), kInfo).ok()); }

TEST(AdmissionTest, RefusalsNameBothNumbers) {
  ExpectRefused([](Request& r) { r.id.clear(); }, "id", "empty");
  ExpectRefused([](Request& r) { r.prompt.clear(); }, "prompt", "0");
  ExpectRefused([](Request& r) { r.prompt[3] = 100; }, "prompt[3] is 100", "0 to 99");
  ExpectRefused([](Request& r) { r.prompt[3] = -1; }, "prompt[3] is -1", "0 to 99");
  ExpectRefused([](Request& r) { r.prompt[3] = std::numeric_limits<int32_t>::max(); }, "2147483647",
                "0 to 99");
  ExpectRefused(
      [](Request& r) {
        r.stop_token_ids = {5, 100};
      },
      "stop_token_ids[1] is 100", "0 to 99");
  ExpectRefused([](Request& r) { r.max_new_tokens = 0; }, "max_new_tokens is 0", "1");
  ExpectRefused([](Request& r) { r.max_new_tokens = std::numeric_limits<int>::max(); },
                "2147483847 tokens", "257");
  ExpectRefused([](Request& r) { r.min_new_tokens = -1; }, "min_new_tokens is -1", "0");
  ExpectRefused([](Request& r) { r.min_new_tokens = 58; }, "58", "57");
  ExpectRefused([](Request& r) { r.max_new_tokens = 58; }, "258", "257");
  ExpectRefused([](Request& r) { r.sampling.top_p = 2.0f; }, "top_p is 2", "1");
}

TEST(AdmissionTest, WhatOutgrowsThePoolAloneIsRefused) {
  EngineInfo info = kInfo;
  info.max_context = 1000;
  ExpectRefused([](Request& r) { r.max_new_tokens = 58; }, "5 cache blocks", "pool has 4", info);
}

// 130 tokens seen at once touch at most 4 blocks, however long the request is.
TEST(AdmissionTest, AWindowedRequestNeedsTheBlocksOfItsWindow) {
  EngineInfo info = kInfo;
  info.max_context = 100000;
  info.sliding_window = 130;
  Request request = MakeRequest();
  request.max_new_tokens = 50000;
  EXPECT_TRUE(CheckRequest(request, info).ok());
  info.sliding_window = 64 * 3 + 2;
  ExpectRefused([](Request& r) { r.max_new_tokens = 50000; }, "5 cache blocks", "pool has 4", info);
}

TEST(AdmissionTest, TheMostNewTokensPassAndOneMoreDoesNot) {
  for (const EngineInfo& limits :
       {kInfo, EngineInfo{.vocab_size = 100, .max_context = 250, .num_blocks = 4},
        EngineInfo{.vocab_size = 100, .max_context = 1000, .num_blocks = 4},
        EngineInfo{.vocab_size = 100, .max_context = 1000, .num_blocks = 4, .sliding_window = 130},
        EngineInfo{
            .vocab_size = 100, .max_context = 1000, .num_blocks = 4, .sliding_window = 194}}) {
    Request request = MakeRequest();
    request.max_new_tokens = MostNewTokens(limits, 200);
    EXPECT_TRUE(CheckRequest(request, limits).ok()) << request.max_new_tokens;
    ++request.max_new_tokens;
    EXPECT_FALSE(CheckRequest(request, limits).ok()) << request.max_new_tokens;
  }
  EXPECT_EQ(MostNewTokens(kInfo, 257), 0);
  EXPECT_EQ(MostNewTokens(kInfo, int64_t{1} << 40), 0);
}

TEST(AdmissionTest, LimitsThatMakeNoSenseAreRefused) {
  EXPECT_TRUE(Validate(SchedulerConfig{}).ok());
  EXPECT_TRUE(Validate(SchedulerConfig{.max_queued_requests = 0}).ok());
  EXPECT_THAT(std::string(Validate(SchedulerConfig{.max_batch_tokens = 0}).message()),
              HasSubstr("max_batch_tokens is 0"));
  EXPECT_FALSE(Validate(SchedulerConfig{.max_sequences = 0}).ok());
  EXPECT_TRUE(Validate(SchedulerConfig{.max_batch_tokens = 100, .max_sequences = 100}).ok());
  EXPECT_THAT(
      std::string(
          Validate(SchedulerConfig{.max_batch_tokens = 100, .max_sequences = 101}).message()),
      AllOf(HasSubstr("max_sequences is 101"), HasSubstr("max_batch_tokens is only 100")));
  EXPECT_FALSE(Validate(SchedulerConfig{.max_queued_requests = -1}).ok());
  EXPECT_FALSE(Validate(SchedulerConfig{.max_queued_tokens = 0}).ok());
}

}  // namespace
}  // namespace latentd
