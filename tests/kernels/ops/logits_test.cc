// What ends a step: rows brought together, and log probabilities of tokens that are known.

#include <cmath>
#include <vector>

#include "tests/testing/device_values.h"
#include "tests/testing/random_values.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

constexpr int64_t kRows = 20, kVocab = 300;

using LogitsTest = OpsTest;

TEST_F(LogitsTest, GatherBringsRowsTogether) {
  const auto ops = NewOps();
  const std::vector<float> in = GaussianValues(kRows * kVocab, 1);
  const DeviceArray<float> device_in = ToDevice(*ops, in);
  // A list that lies where a span of the step was, too.
  std::vector<int32_t> rows = {0, 1, 2};
  ops->BeginStep({.positions = rows});
  for (const int32_t first : {19, 0, 7}) {
    rows = {first, 3, first};
    const DeviceArray<float> out = ToDevice(*ops, std::vector<float>(3 * kVocab, NAN));
    ops->Gather({.in = device_in.data(), .dims = kVocab, .rows = rows, .out = out.data()});
    const std::vector<float> gathered = ToHost(*ops, out);
    for (int64_t n = 0; n < 3; ++n) {
      for (int64_t i = 0; i < kVocab; ++i) {
        ASSERT_EQ(gathered[n * kVocab + i], in[rows[n] * kVocab + i]);
      }
    }
  }
}

TEST_F(LogitsTest, LogProbabilitiesAreThoseOfTheReference) {
  const auto reference = CreateReferenceOps();
  const auto ops = NewOps(3);
  const std::vector<float> logits = GaussianValues(kRows * kVocab, 3, 3.0f);
  std::vector<int32_t> token_ids;
  for (int64_t r = 0; r < kRows; ++r) token_ids.push_back(static_cast<int32_t>(r * 37 % kVocab));
  std::vector<float> want(kRows), got(kRows);
  const DeviceArray<float> device_logits = ToDevice(*ops, logits);
  reference->LogProbability({.logits = logits.data(),
                             .vocab = kVocab,
                             .token_ids = token_ids,
                             .results = absl::MakeSpan(want)});
  ops->BeginStep({});
  ops->LogProbability({.logits = device_logits.data(),
                       .vocab = kVocab,
                       .token_ids = token_ids,
                       .results = absl::MakeSpan(got)});
  for (int64_t r = 0; r < kRows; ++r) EXPECT_NEAR(got[r], want[r], 1e-5) << r;
}

TEST_F(LogitsTest, ALogProbabilityOfBadLogitsIsNaN) {
  const auto ops = NewOps();
  for (const float bad : {NAN, INFINITY}) {
    const DeviceArray<float> logits = ToDevice<float>(*ops, {1, 0, 1, bad});
    const std::vector<int32_t> token_ids = {0, 0};
    std::vector<float> got(2);
    ops->BeginStep({});
    ops->LogProbability({.logits = logits.data(),
                         .vocab = 2,
                         .token_ids = token_ids,
                         .results = absl::MakeSpan(got)});
    EXPECT_NEAR(got[0], -std::log1p(std::exp(-1.0)), 1e-6);
    EXPECT_TRUE(std::isnan(got[1])) << got[1];
  }
}

}  // namespace
}  // namespace latentd
