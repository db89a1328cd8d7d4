#include "engine/evaluation/exact_products.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "engine/evaluation/windows.h"
#include "engine/local_engine.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

const std::string kQuantized = LATENTD_GOLDEN_DIR "/llama-gguf/model.gguf";

// Of every row of a short text.
std::vector<float> LogitsOf(Engine& engine) {
  std::vector<int32_t> ids(41), rows(40);
  std::iota(ids.begin(), ids.end(), 3);
  std::iota(rows.begin(), rows.end(), 0);
  const absl::Status stepped = engine.Step(WindowStep({.tokens = ids}, 0, 40)).status();
  EXPECT_TRUE(stepped.ok()) << stepped;
  const auto logits = engine.Logits(rows);
  EXPECT_TRUE(logits.ok()) << logits.status();
  return {logits->begin(), logits->end()};
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  return largest;
}

std::vector<float> Opened(bool exact_products) {
  const auto opened = OpenForEvaluation(
      {.model = {.model = kQuantized, .threads = 2}, .exact_products = exact_products}, 1);
  EXPECT_TRUE(opened.ok()) << opened.status();
  return LogitsOf(*opened->engine);
}

TEST(ExactProducts, AreThoseOfTheReferenceButForTheRoundingToFp16) {
  const auto checkpoint = Checkpoint::Open(kQuantized);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_TRUE(IsQuantized((*checkpoint)->Find("layers.0.q.weight")->dtype));
  const auto reference =
      CreateLocalEngine(**checkpoint, nullptr, CreateReferenceOps(), {.num_blocks = 1});
  ASSERT_TRUE(reference.ok()) << reference.status();
  const std::vector<float> expected = LogitsOf(**reference);
  const double exact = LargestDifference(Opened(true), expected);
  EXPECT_LT(exact, 5e-3 * *std::max_element(expected.begin(), expected.end()));
  EXPECT_GT(LargestDifference(Opened(false), expected), 4 * exact);
}

}  // namespace
}  // namespace latentd
