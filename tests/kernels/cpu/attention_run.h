#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/reference/attention.h"
#include "tests/testing/attention_case.h"

namespace latentd {

inline std::vector<Segment> One(int dims, Codec codec) { return {{.dims = dims, .codec = codec}}; }

// A plan with its threads. Steps are appended by the reference: what is tested here is attention.
class CpuRun {
 public:
  CpuRun(const AttentionCase& c, int threads)
      : case_(c),
        pool_(threads),
        scratch_(threads),
        plan_(*PrepareCpuAttention(c.spec())),
        reference_plan_(c.spec()) {}

  // Another plan of the same spec.
  void Use(std::unique_ptr<AttentionPlan> plan) { plan_ = std::move(plan); }

  void Append(const AttentionInputs& inputs, PagedCache& cache, const PagedStep& step) const {
    ReferenceAppendCache(AppendRows(case_, inputs, step).Params(reference_plan_, cache.View(step)));
  }

  std::vector<float> Attend(const AttentionInputs& inputs, PagedCache& cache,
                            const PagedStep& step) {
    const std::vector<float> q = RowsOf(step, inputs.q, case_.q_width());
    std::vector<float> out(q.size(), NAN);
    CpuAttention(
        pool_, scratch_,
        {.plan = plan_.get(), .cache = cache.View(step), .q = q.data(), .out = out.data()});
    return out;
  }

 private:
  const AttentionCase& case_;
  ThreadPool pool_;
  Scratch scratch_;
  std::unique_ptr<AttentionPlan> plan_;
  const ReferenceAttentionPlan reference_plan_;
};

inline void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

}  // namespace latentd
