#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "tests/kernels/dtype_goldens.h"
#include "tests/testing/random_values.h"

namespace latentd {
namespace {

using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

TensorView ViewOf(const std::vector<float>& values, int64_t cols) {
  return {.dtype = DType::kF32,
          .rows = static_cast<int64_t>(values.size()) / cols,
          .cols = cols,
          .data = reinterpret_cast<const std::byte*>(values.data())};
}

class ReferenceOpsTest : public ::testing::Test {
 protected:
  const std::unique_ptr<Ops> ops_ = CreateReferenceOps();
};

TEST_F(ReferenceOpsTest, EmbedPicksRowsAndAddsPositions) {
  const std::vector<float> table = {1, 2, 3, 4, 5, 6}, positions = {10, 20, 30, 40};
  const std::vector<int32_t> ids = {2, 0, 2}, at = {0, 1, 1};
  std::vector<float> out(6, NAN);
  ops_->Embed({.token_ids = ids, .positions = at, .table = ViewOf(table, 2), .out = out.data()});
  EXPECT_EQ(out, std::vector<float>({5, 6, 1, 2, 5, 6}));
  const TensorView position_table = ViewOf(positions, 2);
  ops_->Embed({.token_ids = ids,
               .positions = at,
               .table = ViewOf(table, 2),
               .position_table = &position_table,
               .out = out.data()});
  EXPECT_EQ(out, std::vector<float>({15, 26, 31, 42, 35, 46}));
}

TEST_F(ReferenceOpsTest, RmsNormHasUnitMeanSquare) {
  const int dims = 48;
  const std::vector<float> in = GaussianValues(3 * dims, 1, 5.0f), ones(dims, 1.0f);
  const std::vector<float> weight = GaussianValues(dims, 2);
  std::vector<float> unit(in.size(), NAN), out = in;
  ops_->Norm({.epsilon = 0.0f,
              .rows = 3,
              .dims = dims,
              .in = in.data(),
              .weight = ones.data(),
              .out = unit.data()});
  ops_->Norm({.epsilon = 0.0f,
              .rows = 3,
              .dims = dims,
              .in = out.data(),
              .weight = weight.data(),
              .out = out.data()});
  for (int r = 0; r < 3; ++r) {
    double squares = 0;
    for (int i = 0; i < dims; ++i) {
      const float value = unit[r * dims + i];
      squares += value * value;
      EXPECT_NEAR(value / in[r * dims + i], unit[r * dims] / in[r * dims], 1e-6)
          << "one factor per row";
      EXPECT_NEAR(out[r * dims + i], value * weight[i], 1e-6);
    }
    EXPECT_NEAR(squares / dims, 1.0, 1e-6);
  }
}

TEST_F(ReferenceOpsTest, LayerNormHasMeanZeroAndUnitVariance) {
  const int dims = 48;
  std::vector<float> in = GaussianValues(2 * dims, 1, 5.0f);
  for (float& value : in) value += 100.0f;
  const std::vector<float> ones(dims, 1.0f), bias = GaussianValues(dims, 2);
  std::vector<float> out(in.size(), NAN);
  ops_->Norm({.kind = NormKind::kLayer,
              .epsilon = 0.0f,
              .rows = 2,
              .dims = dims,
              .in = in.data(),
              .weight = ones.data(),
              .bias = bias.data(),
              .out = out.data()});
  for (int r = 0; r < 2; ++r) {
    double sum = 0, squares = 0;
    for (int i = 0; i < dims; ++i) {
      const double value = out[r * dims + i] - bias[i];
      sum += value;
      squares += value * value;
    }
    EXPECT_NEAR(sum / dims, 0.0, 1e-5);
    EXPECT_NEAR(squares / dims, 1.0, 1e-5);
  }
}

TEST_F(ReferenceOpsTest, EpsilonIsAddedToTheMeanSquare) {
  const std::vector<float> in = {3, 3}, weight = {1, 1};
  std::vector<float> out(2);
  ops_->Norm({.epsilon = 16.0f,
              .rows = 1,
              .dims = 2,
              .in = in.data(),
              .weight = weight.data(),
              .out = out.data()});
  EXPECT_FLOAT_EQ(out[0], 3.0f / 5.0f);
}

TEST_F(ReferenceOpsTest, MatmulMultipliesByTheTranspose) {
  const std::vector<float> in = {1, 2, 3, 4, 5, 6}, a = {1, 0, -1, 2, 2, 2}, b = {0, 1, 0},
                           bias = {100, 200};
  const auto wa = ops_->PrepareWeight(ViewOf(a, 3)), wb = ops_->PrepareWeight(ViewOf(b, 3));
  ASSERT_TRUE(wa.ok() && wb.ok());
  EXPECT_EQ((*wa)->rows(), 2);
  EXPECT_EQ((*wa)->cols(), 3);
  EXPECT_EQ((*wa)->bytes(), 24);
  std::vector<float> out_a(8, -1.0f), out_b = {10, 20};
  const Product products[] = {
      {.weight = wa->get(), .bias = bias.data(), .out = out_a.data() + 1, .out_stride = 4},
      {.weight = wb->get(), .out = out_b.data(), .out_stride = 1, .accumulate = true}};
  ops_->Matmul({.in = in.data(), .rows = 2, .k = 3, .products = products});
  EXPECT_EQ(out_a, std::vector<float>({-1, 98, 212, -1, -1, 98, 230, -1}));
  EXPECT_EQ(out_b, std::vector<float>({12, 25}));
}

TEST_F(ReferenceOpsTest, MatmulReadsEveryStoredType) {
  for (const DTypeGolden& golden : DTypeGoldens()) {
    const int64_t cols = static_cast<int64_t>(golden.values.size());
    const auto weight =
        ops_->PrepareWeight({.dtype = golden.dtype,
                             .rows = 1,
                             .cols = cols,
                             .data = reinterpret_cast<const std::byte*>(golden.row.data())});
    ASSERT_TRUE(weight.ok()) << weight.status();
    const std::vector<float> in = GaussianValues(cols, 3);
    double want = 0;
    for (int64_t i = 0; i < cols; ++i) {
      float value;
      std::memcpy(&value, &golden.values[i], 4);
      want += double{in[i]} * value;
    }
    float out = NAN;
    const Product products[] = {{.weight = weight->get(), .out = &out, .out_stride = 1}};
    ops_->Matmul({.in = in.data(), .rows = 1, .k = cols, .products = products});
    EXPECT_FLOAT_EQ(out, static_cast<float>(want)) << Info(golden.dtype).name;
  }
}

TEST_F(ReferenceOpsTest, RefusesWeightsThatAreNone) {
  const std::vector<float> values(64);
  TensorView view = ViewOf(values, 48);
  view.dtype = DType::kQ4_0;
  const auto ragged = ops_->PrepareWeight(view);
  EXPECT_EQ(ragged.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ragged.status().message()), HasSubstr("48"));
  EXPECT_THAT(std::string(ragged.status().message()), HasSubstr("32"));
  EXPECT_FALSE(
      ops_->PrepareWeight({.dtype = DType::kF32, .rows = 1, .cols = 1, .data = nullptr}).ok());
  EXPECT_FALSE(ops_->PrepareWeight(ViewOf({}, 4)).ok());
}

RopeTable TableOf(double angle_step, int pairs, int positions) {
  RopeTable table{.pairs = pairs, .max_positions = positions};
  for (int p = 0; p < positions; ++p) {
    for (int j = 0; j < pairs; ++j) {
      table.cos.push_back(static_cast<float>(std::cos(angle_step * p * (j + 1))));
      table.sin.push_back(static_cast<float>(std::sin(angle_step * p * (j + 1))));
    }
  }
  return table;
}

TEST_F(ReferenceOpsTest, RopeRotatesHalfSplitPairs) {
  const RopeTable table = TableOf(std::acos(0.0), 2, 2);  // quarter turns: pair j by j + 1 of them
  std::vector<float> x = {1, 2, 3, 4, 5, 6};  // one head of 6 dims, the last two are not rotated
  const std::vector<int32_t> at = {1};
  ops_->Rope({.table = &table, .positions = at, .heads = 1, .head_dim = 6, .x = x.data()});
  EXPECT_THAT(x, Pointwise(FloatNear(1e-6f), {-3, -2, 1, -4, 5, 6}));
}

// The law that makes RoPE relative: <R(m) q, R(n) k> depends on m - n alone.
TEST_F(ReferenceOpsTest, RopeScoresDependOnTheDistance) {
  const int head_dim = 12;
  const RopeTable table = TableOf(0.1, 6, 40);
  const std::vector<float> q = GaussianValues(2 * head_dim, 1), k = GaussianValues(2 * head_dim, 2);
  const auto score = [&](int m, int n) {
    std::vector<float> rotated_q = q, rotated_k = k;
    const std::vector<int32_t> at_m = {m}, at_n = {n};
    ops_->Rope({.table = &table,
                .positions = at_m,
                .heads = 2,
                .head_dim = head_dim,
                .x = rotated_q.data()});
    ops_->Rope({.table = &table,
                .positions = at_n,
                .heads = 2,
                .head_dim = head_dim,
                .x = rotated_k.data()});
    return std::inner_product(rotated_q.begin(), rotated_q.end(), rotated_k.begin(), 0.0);
  };
  EXPECT_NEAR(score(9, 4), score(39, 34), 1e-5);
  EXPECT_NEAR(score(0, 0), score(17, 17), 1e-5);
  EXPECT_GT(std::abs(score(9, 4) - score(9, 5)), 1e-3);
}

TEST_F(ReferenceOpsTest, ActivationsHaveTheirShape) {
  const std::vector<float> gate = {-30, -1, 0, 1, 30}, up = {2, 2, 2, 2, 2};
  std::vector<float> out(5), in_place = gate;
  ops_->Activation({.kind = ActivationKind::kSiluGated,
                    .rows = 1,
                    .dims = 5,
                    .gate = gate.data(),
                    .up = up.data(),
                    .out = out.data()});
  EXPECT_THAT(out,
              Pointwise(FloatNear(1e-6f), {0.0f, -2 * 0.26894143f, 0.0f, 2 * 0.73105860f, 60.0f}));
  // GELU's tanh form at -1 and 1 as PyTorch 2 prints it.
  ops_->Activation({.kind = ActivationKind::kGeluTanh,
                    .rows = 1,
                    .dims = 5,
                    .gate = in_place.data(),
                    .out = in_place.data()});
  EXPECT_THAT(in_place,
              Pointwise(FloatNear(1e-6f), {0.0f, -0.15880801f, 0.0f, 0.84119199f, 30.0f}));
}

TEST_F(ReferenceOpsTest, SampleServesEveryRow) {
  const std::vector<float> logits = {0, 1, 2, 5, 1, 0, 0, NAN, 0};
  const std::vector<SampleRow> rows(3, SampleRow{.temperature = 0.0f});
  std::vector<SampleResult> results(3);
  ops_->Sample(
      {.logits = logits.data(), .vocab = 3, .rows = rows, .results = absl::MakeSpan(results)});
  EXPECT_EQ(results[0].token_id, 2);
  EXPECT_EQ(results[1].token_id, 0);
  EXPECT_FALSE(results[2].ok);
}

TEST_F(ReferenceOpsTest, ReplayCallsTheOpsEveryTime) {
  int calls = 0;
  const uint8_t pool = 0;
  for (int step = 0; step < 3; ++step) ops_->Replay(&pool, [&] { ++calls; });
  EXPECT_EQ(calls, 3);
}

TEST_F(ReferenceOpsTest, PrepareAttentionChecksItsSpec) {
  AttentionSpec spec{.num_heads = 3,
                     .num_kv_heads = 2,
                     .head_dim = 16,
                     .softmax_scale = 1.0f,
                     .cache = FullCacheLayer(2, 16)};
  EXPECT_EQ(ops_->PrepareAttention(spec).status().code(), absl::StatusCode::kInvalidArgument);
  spec.num_heads = 4;
  EXPECT_TRUE(ops_->PrepareAttention(spec).ok());
}

}  // namespace
}  // namespace latentd
