#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "tests/testing/attention_case.h"

namespace latentd {

// The backend that a test is about, beside the reference. Which one is a matter of what the test is
// linked with: cpu_backend.cc or cuda_backend.cc.

const char* TestedBackendName();  // "cpu"
// FAILED_PRECONDITION where the machine lacks the device.
absl::StatusOr<std::unique_ptr<Ops>> CreateTestedOps(int threads);
// The same, without the law of Ops where the backend is faster so.
absl::StatusOr<std::unique_ptr<Ops>> CreateFastestOps(int threads);
// What a machine may have for `threads`: bits must not depend on it.
std::vector<int> ThreadCounts();

// Runs `body` once for each kind of code that the backend chooses among when it runs.
void ForEachKindOfCode(const std::function<void()>& body);

// The ways to prepare attention that the machine decides between; the first is PrepareAttention.
struct PlanKind {
  std::string name;
  std::function<absl::StatusOr<std::unique_ptr<AttentionPlan>>(Ops&, const AttentionSpec&)> prepare;
};
std::vector<PlanKind> PlanKinds();
// Whether a plan may be UNIMPLEMENTED: the tests then go on with the next shape.
bool MayRefuseAttention();
// The norm of attention's error at most, over that of its rows.
double AttentionTolerance(const AttentionShape& shape);
// How far one score of attention may be off, of queries and keys as attention_scores_test.cc has
// them, in a step with one row a sequence (`decode`) or with more.
double ScoreTolerance(const AttentionShape& shape, bool decode);

// What a product multiplies of an input that meets a weight of `dtype`, and of a weight's value.
std::vector<double> SeenInput(DType dtype, const std::vector<float>& in);
double SeenWeight(float value);
// The columns of plain weights that PrepareWeight takes are the multiples of this.
int64_t ColumnStep();
// How far products move the logits of the tiny models of tests/engine/golden.
float LogitTolerance();

// Skips its tests where the machine lacks the device.
class OpsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status status = CreateTestedOps(1).status();
    if (absl::IsFailedPrecondition(status)) GTEST_SKIP() << status.message();
    ASSERT_TRUE(status.ok()) << status;
  }

  static std::unique_ptr<Ops> NewOps(int threads = 1) {
    absl::StatusOr<std::unique_ptr<Ops>> ops = CreateTestedOps(threads);
    EXPECT_TRUE(ops.ok()) << ops.status();
    return *std::move(ops);
  }
};

}  // namespace latentd
