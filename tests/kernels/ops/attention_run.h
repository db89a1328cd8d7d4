#pragma once

#include <cmath>
#include <cstring>
#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/reference/attention.h"
#include "tests/testing/attention_case.h"
#include "tests/testing/device_values.h"
#include "tests/testing/tested_backend.h"

namespace latentd {

inline std::vector<Segment> One(int dims, Codec codec) { return {{.dims = dims, .codec = codec}}; }

// A layer's attention on the backend under test. Caches are the host's: each op has a copy of its
// own, from which what it has written comes back.
class AttentionRun {
 public:
  AttentionRun(const AttentionCase& c, int threads, const PlanKind& kind = PlanKinds()[0])
      : AttentionRun(c, c.spec(), threads, kind) {}
  // `spec` has the shape of the case's.
  AttentionRun(const AttentionCase& c, const AttentionSpec& spec, int threads,
               const PlanKind& kind = PlanKinds()[0])
      : case_(c), ops_(*CreateTestedOps(threads)), reference_plan_(spec) {
    absl::StatusOr<std::unique_ptr<AttentionPlan>> plan = kind.prepare(*ops_, spec);
    if (absl::IsUnimplemented(plan.status()) && MayRefuseAttention()) {
      std::cout << "    not served: " << plan.status().message() << std::endl;
      return;
    }
    EXPECT_TRUE(plan.ok()) << plan.status();
    plan_ = *std::move(plan);
  }

  // The backend has no kernel for the case.
  bool refused() const { return plan_ == nullptr; }

  void Append(const AttentionInputs& inputs, PagedCache& cache, const PagedStep& step) {
    const AppendRows rows(case_, inputs, step);
    const DeviceArray<float> k = ToDevice(*ops_, rows.k), v = ToDevice(*ops_, rows.v),
                             sink_k = ToDevice(*ops_, rows.sink_k),
                             sink_v = ToDevice(*ops_, rows.sink_v);
    DeviceCache device(*ops_, cache, step);
    AppendCacheParams params = rows.Params(*plan_, device.view());
    params.k = k.data();
    params.v = v.data();
    params.sink_k = sink_k.data();
    params.sink_v = sink_v.data();
    ops_->AppendCache(params);
    device.CopyBack();
  }
  // By the reference, where attention alone is tested.
  void AppendReference(const AttentionInputs& inputs, PagedCache& cache,
                       const PagedStep& step) const {
    ReferenceAppendCache(AppendRows(case_, inputs, step).Params(reference_plan_, cache.View(step)));
  }

  std::vector<float> Attend(const AttentionInputs& inputs, PagedCache& cache,
                            const PagedStep& step) {
    const std::vector<float> q = RowsOf(step, inputs.q, case_.q_width());
    const DeviceArray<float> device_q = ToDevice(*ops_, q),
                             out = ToDevice(*ops_, std::vector<float>(q.size(), NAN));
    DeviceCache device(*ops_, cache, step);
    ops_->Attention(
        {.plan = plan_.get(), .cache = device.view(), .q = device_q.data(), .out = out.data()});
    device.CopyBack();
    return ToHost(*ops_, out);
  }
  std::vector<float> AttendReference(const AttentionInputs& inputs, PagedCache& cache,
                                     const PagedStep& step) const {
    const std::vector<float> q = RowsOf(step, inputs.q, case_.q_width());
    std::vector<float> out(q.size());
    ReferenceAttention(
        {.plan = &reference_plan_, .cache = cache.View(step), .q = q.data(), .out = out.data()});
    return out;
  }

 private:
  const AttentionCase& case_;
  const std::unique_ptr<Ops> ops_;
  std::unique_ptr<AttentionPlan> plan_;
  const ReferenceAttentionPlan reference_plan_;
};

inline void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

// Norm of the difference over the norm of the expected rows.
inline double RelativeError(const std::vector<float>& expected, const std::vector<float>& actual) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = actual[i] - expected[i];
    error += difference * difference;
    norm += double{expected[i]} * expected[i];
  }
  return std::sqrt(error / norm);
}

// Attention of each sequence's last `q_len` tokens, by every kind of plan.
inline void ExpectAgreesWithReference(const AttentionShape& shape,
                                      const std::vector<int32_t>& kv_lens, int32_t q_len,
                                      const std::vector<PlanKind>& kinds = {PlanKinds()[0]}) {
  const AttentionCase c(shape);
  PagedCache cache(c.spec().cache, kv_lens);
  const AttentionInputs inputs(c, cache.num_tokens());
  const PagedStep step = cache.LastStep(q_len);
  std::vector<float> expected;
  for (const PlanKind& kind : kinds) {
    SCOPED_TRACE(kind.name);
    AttentionRun run(c, 2, kind);
    if (run.refused()) continue;
    if (expected.empty()) {
      run.AppendReference(inputs, cache, cache.StepBeforeLast(q_len));
      run.AppendReference(inputs, cache, step);
      if (shape.window > 0) {  // as a scheduler gives back what no row sees
        for (size_t s = 0; s < kv_lens.size(); ++s) {
          cache.FreeBefore(static_cast<int>(s), kv_lens[s] - q_len - shape.window + 1);
        }
      }
      expected = run.AttendReference(inputs, cache, step);
    }
    const std::vector<float> actual = run.Attend(inputs, cache, step);
    EXPECT_LT(RelativeError(expected, actual), AttentionTolerance(shape));
    EXPECT_TRUE(cache.GuardsIntact());
  }
}

}  // namespace latentd
