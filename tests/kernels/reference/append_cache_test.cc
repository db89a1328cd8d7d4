// What an append leaves in the seats. Its codes are tested through attention (attention_test.cc)
// and by the layout (cache_layout_test.cc).

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cache_view.h"
#include "kernels/dtype.h"
#include "kernels/ops.h"
#include "tests/testing/attention_case.h"

namespace latentd {
namespace {

AttentionShape Shape() {
  return {.path = AttentionPath::kReconstruct,
          .head_dim = 16,
          .k_latent_heads = 1,
          .k = {{.dims = 32, .codec = Codec::kInt4}},
          .v = {{.dims = 16, .codec = Codec::kInt2}},
          .biases = true,
          .sinks = 3,
          .own_page = true,
          .k_norm = true};
}

class AppendCacheTest : public ::testing::Test {
 protected:
  void Append(PagedCache& cache, const PagedStep& step) {
    const AppendRows rows(case_, in_, step);
    ops_->AppendCache(rows.Params(**plan_, cache.View(step)));
    EXPECT_TRUE(cache.GuardsIntact());
    EXPECT_TRUE(step.step_pages->GuardsIntact());
  }
  // The latents of one token in an own page are the token's, in 16 bits.
  void ExpectOwnRow(const uint8_t* page, int token, int64_t of_token) {
    const CacheLayer own = layer().OwnPageLayer();
    for (const bool is_k : {true, false}) {
      const CachePlane& plane = is_k ? own.k : own.v;
      const std::vector<float>& all = is_k ? in_.k : in_.v;
      for (int head = 0; head < plane.latent_heads; ++head) {
        const int64_t offset = is_k ? own.k_offset(0, head) : own.v_offset(0, head);
        std::vector<float> got(plane.dims());
        ReadCacheRow(plane, page + offset, token, absl::MakeSpan(got));
        for (int d = 0; d < plane.dims(); ++d) {
          const float want = all[(of_token * plane.latent_heads + head) * plane.dims() + d];
          ASSERT_EQ(got[d], HalfToFloat(FloatToHalf(want))) << "token " << of_token;
        }
      }
    }
  }
  const CacheLayer& layer() const { return case_.spec().cache; }

  const AttentionCase case_{Shape()};
  const AttentionInputs in_{case_, 400};
  const std::unique_ptr<Ops> ops_ = CreateReferenceOps();
  const absl::StatusOr<std::unique_ptr<AttentionPlan>> plan_ = ops_->PrepareAttention(case_.spec());
};

TEST_F(AppendCacheTest, OwnPagesHoldTheirTokensIn16Bits) {
  const std::vector<int32_t> kv_lens = {200, 1, 0, 70};
  PagedCache cache(layer(), kv_lens);
  Append(cache, cache.Step({0, 0, 0, 0}, {30, 0, 0, 64}));
  const PagedStep step = cache.Step({30, 0, 0, 64}, kv_lens);
  Append(cache, step);
  const CacheView view = cache.View(step);
  for (int position = 0; position < 200; ++position) {  // 0 .. 29 were moved here from the seat
    ExpectOwnRow(OwnPage(layer(), view, 0, position / 64), position % 64, position);
  }
  ExpectOwnRow(OwnPage(layer(), view, 1, 0), 0, 200);
  for (int position = 64; position < 70; ++position) {
    ExpectOwnRow(OwnPage(layer(), view, 3, 1), position % 64, 201 + position);
  }
}

TEST_F(AppendCacheTest, SinksAreTheFirstRowsInHalves) {
  const std::vector<int32_t> kv_lens = {2, 130, 0, 4};
  PagedCache cache(layer(), kv_lens);
  Append(cache, cache.Step({0, 0, 0, 0}, {1, 1, 0, 0}));
  Append(cache, cache.Step({1, 1, 0, 0}, {2, 2, 0, 1}));
  const PagedStep step = cache.Step({2, 2, 0, 1}, kv_lens);
  Append(cache, step);
  const CacheView view = cache.View(step);
  int64_t first_token = 0;
  const int64_t dims = case_.sink_width();
  for (int64_t i = 0; i < 4; ++i) {
    const uint16_t* keys = Sinks(layer(), view, i);
    const uint16_t* values = keys + layer().sinks * dims;
    for (int64_t x = 0; x < layer().sinks * dims; ++x) {
      const bool written = x < kv_lens[i] * dims;
      const int64_t from = first_token * dims + x;
      EXPECT_EQ(keys[x], written ? FloatToHalf(in_.sink_k[from]) : 0xFFFF);
      EXPECT_EQ(values[x], written ? FloatToHalf(in_.sink_v[from]) : 0xFFFF);
    }
    first_token += kv_lens[i];
  }
}

// Of a latent and a bias of zero the norm is epsilon alone; without epsilon it is infinite.
TEST_F(AppendCacheTest, InverseNormsStayFinite) {
  for (const float epsilon : {0.0f, 1e-6f}) {
    AttentionSpec spec = case_.spec();
    spec.k_bias = nullptr;
    spec.k_norm_epsilon = epsilon;
    const auto plan = ops_->PrepareAttention(spec);
    ASSERT_TRUE(plan.ok()) << plan.status();
    PagedCache cache(layer(), {1});
    const PagedStep step = cache.WholeStep();
    AttentionInputs zeros(case_, 1);
    zeros.k.assign(zeros.k.size(), 0.0f);
    const AppendRows rows(case_, zeros, step);
    const CacheView view = cache.View(step);
    ops_->AppendCache(rows.Params(**plan, view));
    const uint8_t* block = view.layer + cache.SlotOf(0, 0) / 64 * view.block_bytes;
    uint16_t norm;
    std::memcpy(&norm, block + layer().key_norm_offset(1), sizeof(norm));
    EXPECT_NEAR(HalfToFloat(norm), epsilon == 0.0f ? kMaxKeyNorm : 1000.0f, 0.5f);
  }
}

// Rows of other sequences' blocks and seats, spare ones included, keep their bytes.
TEST_F(AppendCacheTest, TouchesOnlyItsOwn) {
  const std::vector<int32_t> kv_lens = {70, 70};
  PagedCache cache(layer(), kv_lens), other(layer(), kv_lens);
  Append(cache, cache.Step({0, 0}, {70, 0}));
  Append(other, other.Step({0, 0}, {0, 70}));
  for (size_t i = 0; i < cache.bytes().size(); ++i) {
    ASSERT_TRUE(cache.bytes()[i] == 0xFF || other.bytes()[i] == 0xFF) << "byte " << i;
  }
}

}  // namespace
}  // namespace latentd
