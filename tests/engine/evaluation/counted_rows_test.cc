#include "engine/evaluation/counted_rows.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

// The logits of a row are its token id times `factor`, and one more. Checks that every sequence is
// computed in order from its start.
class EchoEngine final : public Engine {
 public:
  explicit EchoEngine(float factor) : factor_(factor) {
    info_ = {.vocab_size = 2000, .max_context = 1100};
  }
  const EngineInfo& info() const override { return info_; }

  absl::StatusOr<StepOutput> Step(const Batch& batch) override {
    EXPECT_EQ(batch.num_sequences(), 1);
    EXPECT_TRUE(batch.positions[0] == 0 || batch.positions[0] == next_position_);
    next_position_ = batch.positions.back() + 1;
    token_ids_ = batch.token_ids;
    ++steps;
    return StepOutput{};
  }
  absl::StatusOr<absl::Span<const float>> Logits(absl::Span<const int32_t> rows) override {
    EXPECT_LE(rows.size(), 64u);
    logits_.clear();
    for (const int32_t row : rows) {
      const float value = factor_ * static_cast<float>(token_ids_[row]);
      logits_.insert(logits_.end(), info_.vocab_size, value);
      logits_.back() = value + 1;
    }
    return logits_;
  }
  int steps = 0;

 private:
  const float factor_;
  EngineInfo info_;
  int next_position_ = 0;
  std::vector<int32_t> token_ids_;
  std::vector<float> logits_;
};

std::vector<int32_t> CountingIds(int count) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

TEST(CountedRows, EveryCountedTokenComesOnceWithTheLogitsOfTheRowBeforeIt) {
  const std::vector<int32_t> ids = CountingIds(1700);
  const absl::Span<const int32_t> text = ids;
  const std::vector<TextWindow> windows = {{.tokens = text.subspan(0, 1025), .first_counted = 600},
                                           {.tokens = text.subspan(1000, 700)}};
  EXPECT_EQ(CountedRows(windows), 425 + 699);
  for (const int threads : {1, 3, 0}) {
    EchoEngine one(1), two(2);
    std::vector<int32_t> seen(CountedRows(windows));
    std::vector<double> shares;
    const absl::Status status = ForCountedRows(
        {&one, &two}, windows, threads,
        [&](int64_t index, absl::Span<const absl::Span<const float>> logits, int32_t next) {
          EXPECT_EQ(logits.size(), 2u);
          EXPECT_EQ(logits[0].size(), 2000u);
          EXPECT_EQ(logits[0].front(), static_cast<float>(next - 1));
          EXPECT_EQ(logits[1].back(), static_cast<float>(2 * (next - 1) + 1));
          seen[index] = next;
        },
        [&](double share) {
          shares.push_back(share);
          return absl::OkStatus();
        });
    ASSERT_TRUE(status.ok()) << status;
    std::vector<int32_t> expected(ids.begin() + 600, ids.begin() + 1025);
    expected.insert(expected.end(), ids.begin() + 1001, ids.end());
    EXPECT_EQ(seen, expected);
    EXPECT_THAT(shares, ::testing::ElementsAre(0.25, 0.5, 0.5 + 256.0 / 699, 1));
  }
}

TEST(CountedRows, ProgressCanEndTheWorkAndBadWindowsAreNamed) {
  const std::vector<int32_t> ids = CountingIds(1200);
  EchoEngine engine(1);
  const auto ignore = [](auto&&...) {};
  const auto end = [](double) { return absl::CancelledError("enough"); };
  const TextWindow window{.tokens = absl::MakeConstSpan(ids).subspan(0, 1025)};
  EXPECT_TRUE(absl::IsCancelled(ForCountedRows({&engine}, {window}, 1, ignore, end)));
  EXPECT_EQ(engine.steps, 1);
  EXPECT_THAT(ForCountedRows({&engine}, {{.tokens = ids}}, 1, ignore, end).message(),
              HasSubstr("--window is 1200, the context is 1100"));
}

}  // namespace
}  // namespace latentd
