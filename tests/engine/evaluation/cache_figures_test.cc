#include "engine/evaluation/cache_figures.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

TEST(CacheFigures, WhatASequenceKeepsOnceCountsAtTheWindowsLength) {
  const EngineInfo info{.bytes_per_token = 10,
                        .bytes_per_sequence = 6000,
                        .full_bytes_per_token = 80,
                        .cache_name = "mixed"};
  EXPECT_DOUBLE_EQ(RatioAt(info, 200), 2.0);  // 16,000 over 2,000 + 6,000
  nlohmann::ordered_json json = {{"perplexity", 1.0}};
  AddCacheFigures(info, 200, &json);
  EXPECT_EQ(json.dump(), R"({"perplexity":1.0,"cache":"mixed","bytes_per_token":10.0,)"
                         R"("bytes_per_sequence":6000.0,"full_bytes_per_token":80.0,"ratio":8.0,)"
                         R"("ratio_at_window":2.0})");
  EXPECT_THAT(CacheFigures(info, 200), ::testing::HasSubstr("ratio 8.00, 2.00 at 200 tokens"));
}

}  // namespace
}  // namespace latentd
