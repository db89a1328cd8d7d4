#include "scheduler/batch_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace latentd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Sequence MakeSequence(std::vector<int32_t> tokens, int num_prompt_tokens, int num_computed,
                      std::vector<int32_t> blocks) {
  Request request;
  request.prompt.assign(tokens.begin(), tokens.begin() + num_prompt_tokens);
  request.stop_token_ids = {8, 9};
  Sequence sequence;
  sequence.request = std::make_shared<Request>(request);
  sequence.tokens = std::move(tokens);
  sequence.num_computed = num_computed;
  sequence.blocks = std::move(blocks);
  return sequence;
}

TEST(BatchBuilderTest, MixesADecodeRowWithAChunk) {
  std::vector<int32_t> long_prompt(100);
  for (int i = 0; i < 100; ++i) long_prompt[i] = i;
  Sequence decode = MakeSequence({1, 2, 3}, 2, 2, {5});
  Sequence chunk = MakeSequence(long_prompt, 100, 62, {7, 3});
  const Batch batch = BuildBatch({{&decode, 1}, {&chunk, 4}});
  EXPECT_THAT(batch.token_ids, ElementsAre(3, 62, 63, 64, 65));
  EXPECT_THAT(batch.positions, ElementsAre(2, 62, 63, 64, 65));
  EXPECT_THAT(batch.slots, ElementsAre(5 * 64 + 2, 7 * 64 + 62, 7 * 64 + 63, 3 * 64, 3 * 64 + 1));
  EXPECT_THAT(batch.cu_q_lens, ElementsAre(0, 1, 5));
  EXPECT_THAT(batch.kv_lens, ElementsAre(3, 66));
  EXPECT_EQ(batch.max_blocks, 2);
  EXPECT_THAT(batch.block_table, ElementsAre(5, -1, 7, 3));
  ASSERT_EQ(batch.samples.size(), 1u);  // the chunk's last token is not among its rows
  EXPECT_EQ(batch.samples[0].row, 0);
  EXPECT_EQ(batch.samples[0].position, 3);
  EXPECT_EQ(batch.samples[0].num_prompt_tokens, 2);
}

TEST(BatchBuilderTest, SamplesExactlyWhenTheLastTokenIsComputed) {
  Sequence sequence = MakeSequence({1, 2, 3, 4}, 4, 1, {0});
  EXPECT_THAT(BuildBatch({{&sequence, 2}}).samples, IsEmpty());
  const Batch batch = BuildBatch({{&sequence, 3}});
  ASSERT_EQ(batch.samples.size(), 1u);
  EXPECT_EQ(batch.samples[0].row, 2);
}

TEST(BatchBuilderTest, TokensTravelOnlyWithPenalties) {
  for (float SamplingParams::*penalty :
       {&SamplingParams::repetition_penalty, &SamplingParams::presence_penalty,
        &SamplingParams::frequency_penalty}) {
    Sequence sequence = MakeSequence({1, 2, 3}, 2, 2, {0});
    EXPECT_THAT(BuildBatch({{&sequence, 1}}).samples[0].tokens, IsEmpty());
    Request request = *sequence.request;
    request.sampling.*penalty = 1.5f;
    sequence.request = std::make_shared<Request>(request);
    EXPECT_THAT(BuildBatch({{&sequence, 1}}).samples[0].tokens, ElementsAre(1, 2, 3));
  }
}

TEST(BatchBuilderTest, StopIdsAreBannedBelowTheMinimum) {
  Sequence sequence = MakeSequence({1, 2, 3}, 2, 2, {0});
  Request request = *sequence.request;
  request.min_new_tokens = 2;
  sequence.request = std::make_shared<Request>(request);
  EXPECT_THAT(BuildBatch({{&sequence, 1}}).samples[0].banned, ElementsAre(8, 9));
  sequence.tokens.push_back(4);
  EXPECT_THAT(BuildBatch({{&sequence, 2}}).samples[0].banned, IsEmpty());
}

}  // namespace
}  // namespace latentd
