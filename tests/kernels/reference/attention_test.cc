#include "kernels/reference/attention.h"

#include <cmath>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "tests/testing/paged_cache.h"
#include "tests/testing/random_values.h"

namespace latentd {
namespace {

// Sequences without tokens, of one token, and round the block's edges.
const std::vector<int32_t> kRagged = {0, 1, 63, 64, 65, 3, 130};

struct Shape {
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 24;

  int q_width() const { return num_heads * head_dim; }
  int kv_width() const { return num_kv_heads * head_dim; }
};

RopeTable MakeTable(int pairs, int max_positions) {
  RopeTable table{.pairs = pairs, .max_positions = max_positions, .cos = {}, .sin = {}};
  for (int position = 0; position < max_positions; ++position) {
    for (int j = 0; j < pairs; ++j) {
      const double angle = position * std::pow(1e4, -static_cast<double>(j) / pairs);
      table.cos.push_back(static_cast<float>(std::cos(angle)));
      table.sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return table;
}

// The rows of an orthogonal [n, n] matrix, by Gram and Schmidt.
std::vector<std::vector<double>> Orthogonal(int n, uint64_t seed) {
  std::vector<std::vector<double>> rows;
  for (int r = 0; r < n; ++r) {
    const std::vector<float> start = GaussianValues(n, seed + 1000 * r);
    std::vector<double> row(start.begin(), start.end());
    for (int pass = 0; pass < 2; ++pass) {
      for (const std::vector<double>& other : rows) {
        double along = 0;
        for (int i = 0; i < n; ++i) along += row[i] * other[i];
        for (int i = 0; i < n; ++i) row[i] -= along * other[i];
      }
    }
    double norm = 0;
    for (const double value : row) norm += value * value;
    for (double& value : row) value /= std::sqrt(norm);
    rows.push_back(row);
  }
  return rows;
}

// Full-rank factors of [tokens, kv_width] rows: up [heads][width][width], and the latents up^T row
// of each.
struct Factors {
  std::vector<float> up;
  std::vector<float> latents;
};
Factors Factorise(const std::vector<float>& rows, int kv_width, int latent_heads, uint64_t seed) {
  const int width = kv_width / latent_heads;
  Factors factors{.up = {}, .latents = std::vector<float>(rows.size())};
  for (int h = 0; h < latent_heads; ++h) {
    const auto up = Orthogonal(width, seed + h);
    for (const auto& row : up) factors.up.insert(factors.up.end(), row.begin(), row.end());
    for (size_t start = h * width; start < rows.size(); start += kv_width) {
      for (int d = 0; d < width; ++d) {
        double sum = 0;
        for (int i = 0; i < width; ++i) sum += up[i][d] * rows[start + i];
        factors.latents[start + d] = static_cast<float>(sum);
      }
    }
  }
  return factors;
}

CacheLayer LatentLayer(int latent_heads, int dims) {
  const Segment segment{.dims = dims, .codec = Codec::kF32};
  return {
      .k = {.latent_heads = latent_heads, .segments = {segment}, .order = TileOrder::kDimMajor},
      .v = {.latent_heads = latent_heads, .segments = {segment}, .order = TileOrder::kTokenMajor}};
}

// q, k and v of all tokens of the sequences, before any RoPE: [tokens, width].
struct Inputs {
  Inputs(const Shape& shape, int64_t tokens)
      : q(GaussianValues(tokens * shape.q_width(), 1)),
        k(GaussianValues(tokens * shape.kv_width(), 2)),
        v(GaussianValues(tokens * shape.kv_width(), 3)) {}
  std::vector<float> q, k, v;
};

class ReferenceAttentionTest : public ::testing::Test {
 protected:
  AttentionSpec FullSpec(const Shape& shape, Codec codec = Codec::kF32) const {
    return {.path = AttentionPath::kFull,
            .num_heads = shape.num_heads,
            .num_kv_heads = shape.num_kv_heads,
            .head_dim = shape.head_dim,
            .softmax_scale = 0.2f,
            .cache = FullCacheLayer(shape.num_kv_heads, shape.head_dim, codec)};
  }

  std::unique_ptr<AttentionPlan> Prepare(const AttentionSpec& spec) {
    auto plan = ops_->PrepareAttention(spec);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  }

  // Appends and attends the step's rows; what `k` and `v` hold of a token has the width of the
  // plan's planes.
  std::vector<float> Run(const AttentionPlan& plan, PagedCache& cache, const PagedStep& step,
                         const std::vector<float>& q, const std::vector<float>& k,
                         const std::vector<float>& v) {
    const AttentionSpec& spec = plan.spec();
    const int64_t q_width = spec.num_heads * spec.head_dim;
    const bool full = spec.path == AttentionPath::kFull;
    const int64_t k_width =
        spec.cache.k.latent_heads * (full ? spec.head_dim : spec.cache.k.dims());
    const int64_t v_width =
        spec.cache.v.latent_heads * (full ? spec.head_dim : spec.cache.v.dims());
    const std::vector<float> k_rows = RowsOf(step, k, k_width), v_rows = RowsOf(step, v, v_width);
    const std::vector<float> q_rows = RowsOf(step, q, q_width);
    const CacheView view = cache.View(step);
    ops_->AppendCache({.plan = &plan,
                       .cache = view,
                       .k = k_rows.data(),
                       .k_stride = k_width,
                       .v = v_rows.data(),
                       .v_stride = v_width});
    std::vector<float> out(q_rows.size(), NAN);
    ops_->Attention({.plan = &plan, .cache = view, .q = q_rows.data(), .out = out.data()});
    return out;
  }
  std::vector<float> RunWhole(const AttentionSpec& spec, const std::vector<float>& q,
                              const std::vector<float>& k, const std::vector<float>& v) {
    const auto plan = Prepare(spec);
    PagedCache cache(spec.cache, kRagged);
    const std::vector<float> out = Run(*plan, cache, cache.WholeStep(), q, k, v);
    EXPECT_TRUE(cache.GuardsIntact());
    return out;
  }

  // Rotates [tokens, heads, head_dim] by every token's position.
  void Rotate(const RopeTable& table, const Shape& shape, int heads, std::vector<float>& x) {
    const PagedCache positions(FullCacheLayer(1, 16), kRagged);
    const PagedStep step = positions.WholeStep();
    ops_->Rope({.table = &table,
                .positions = step.positions,
                .heads = heads,
                .head_dim = shape.head_dim,
                .x = x.data()});
  }

  const std::unique_ptr<Ops> ops_ = CreateReferenceOps();
};

int64_t NumTokens() { return std::accumulate(kRagged.begin(), kRagged.end(), int64_t{0}); }

// softmax(scale q k^T) v of every sequence in float64, on contiguous rows, without any cache.
std::vector<float> BruteForce(const Shape& shape, double scale, const Inputs& in) {
  std::vector<float> out(in.q.size());
  const int q_per_kv = shape.num_heads / shape.num_kv_heads;
  int64_t first = 0;
  for (const int32_t len : kRagged) {
    for (int64_t t = first; t < first + len; ++t) {
      for (int h = 0; h < shape.num_heads; ++h) {
        const auto at = [&](const std::vector<float>& rows, int64_t n, int i) -> double {
          return rows[n * shape.kv_width() + h / q_per_kv * shape.head_dim + i];
        };
        const float* q = in.q.data() + t * shape.q_width() + h * shape.head_dim;
        double total = 0;
        std::vector<double> sums(shape.head_dim, 0.0);
        for (int64_t n = first; n <= t; ++n) {
          double score = 0;
          for (int i = 0; i < shape.head_dim; ++i) score += q[i] * at(in.k, n, i);
          const double weight = std::exp(scale * score);
          total += weight;
          for (int i = 0; i < shape.head_dim; ++i) sums[i] += weight * at(in.v, n, i);
        }
        for (int i = 0; i < shape.head_dim; ++i) {
          out[t * shape.q_width() + h * shape.head_dim + i] = static_cast<float>(sums[i] / total);
        }
      }
    }
    first += len;
  }
  return out;
}

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  ASSERT_FALSE(got.empty());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << "value " << i;
}

TEST_F(ReferenceAttentionTest, FullIsBruteForce) {
  for (const Shape& shape : {Shape{4, 2, 24}, Shape{3, 3, 16}, Shape{8, 1, 8}, Shape{1, 1, 64}}) {
    const Inputs in(shape, NumTokens());
    const AttentionSpec spec = FullSpec(shape);
    ExpectNear(RunWhole(spec, in.q, in.k, in.v), BruteForce(shape, spec.softmax_scale, in), 1e-6);
  }
}

// What a coded cache holds is what EncodeRow makes of each head's row, padded with zeros to 16
// dims.
TEST_F(ReferenceAttentionTest, CodedIsBruteForceOnDecodedRows) {
  const Shape shape;
  for (const Codec codec : {Codec::kF16, Codec::kInt8, Codec::kInt4, Codec::kInt3, Codec::kInt2,
                            Codec::kMinMax4, Codec::kMinMax3, Codec::kMinMax2}) {
    Inputs in(shape, NumTokens());
    const AttentionSpec spec = FullSpec(shape, codec);
    const std::vector<float> got = RunWhole(spec, in.q, in.k, in.v);
    CachePlane plane = spec.cache.k;
    std::vector<uint8_t> head(plane.head_bytes());
    for (std::vector<float>* rows : {&in.k, &in.v}) {
      for (size_t start = 0; start < rows->size(); start += shape.head_dim) {
        std::vector<float> padded(plane.dims(), 0.0f);
        std::copy_n(rows->begin() + start, shape.head_dim, padded.begin());
        WriteCacheRow(plane, head.data(), 0, padded);
        ReadCacheRow(plane, head.data(), 0, absl::MakeSpan(padded));
        std::copy_n(padded.begin(), shape.head_dim, rows->begin() + start);
      }
    }
    ExpectNear(got, BruteForce(shape, spec.softmax_scale, in), 1e-6);
  }
}

TEST_F(ReferenceAttentionTest, AbsorbedAtFullRankIsFull) {
  const Shape shape{.num_heads = 8, .num_kv_heads = 4, .head_dim = 16};
  for (const int latent_heads : {1, 2, 4}) {
    Inputs in(shape, NumTokens());
    const Factors k = Factorise(in.k, shape.kv_width(), latent_heads, 10);
    const Factors v = Factorise(in.v, shape.kv_width(), latent_heads, 20);
    const std::vector<float> k_bias = GaussianValues(shape.kv_width(), 30, 3.0f);
    for (size_t i = 0; i < in.k.size(); ++i) in.k[i] += k_bias[i % shape.kv_width()];
    AttentionSpec spec = FullSpec(shape);
    const std::vector<float> want = RunWhole(spec, in.q, in.k, in.v);
    spec.path = AttentionPath::kAbsorbed;  // the bias shifts all scores of a query alike
    spec.cache = LatentLayer(latent_heads, shape.kv_width() / latent_heads);
    spec.k_up = k.up.data();
    spec.v_up = v.up.data();
    ExpectNear(RunWhole(spec, in.q, k.latents, v.latents), want, 2e-5);
  }
}

TEST_F(ReferenceAttentionTest, ReconstructedAtFullRankIsFull) {
  const Shape shape{.num_heads = 8, .num_kv_heads = 4, .head_dim = 16};
  for (const int latent_heads : {1, 2, 4}) {
    for (const int pairs : {8, 3}) {
      const RopeTable table = MakeTable(pairs, 130);
      Inputs in(shape, NumTokens());
      const Factors k = Factorise(in.k, shape.kv_width(), latent_heads, 10);
      const Factors v = Factorise(in.v, shape.kv_width(), latent_heads, 20);
      const std::vector<float> k_bias = GaussianValues(shape.kv_width(), 30, 3.0f);
      const std::vector<float> v_bias = GaussianValues(shape.kv_width(), 31);
      for (size_t i = 0; i < in.k.size(); ++i) {
        in.k[i] += k_bias[i % shape.kv_width()];
        in.v[i] += v_bias[i % shape.kv_width()];
      }
      Rotate(table, shape, shape.num_heads, in.q);
      Rotate(table, shape, shape.num_kv_heads, in.k);
      AttentionSpec spec = FullSpec(shape);
      const std::vector<float> want = RunWhole(spec, in.q, in.k, in.v);
      spec.path = AttentionPath::kReconstruct;
      spec.cache = LatentLayer(latent_heads, shape.kv_width() / latent_heads);
      spec.rope = &table;
      spec.k_up = k.up.data();
      spec.v_up = v.up.data();
      spec.k_bias = k_bias.data();
      spec.v_bias = v_bias.data();
      ExpectNear(RunWhole(spec, in.q, k.latents, v.latents), want, 2e-5);
    }
  }
}

TEST_F(ReferenceAttentionTest, PlanOwnsItsFactors) {
  const Shape shape{.num_heads = 2, .num_kv_heads = 2, .head_dim = 16};
  const Inputs in(shape, NumTokens());
  AttentionSpec spec = FullSpec(shape);
  spec.path = AttentionPath::kAbsorbed;
  std::vector<float> up = GaussianValues(shape.kv_width() * 16, 4);
  spec.k_up = spec.v_up = up.data();
  const auto plan = Prepare(spec);
  EXPECT_EQ(plan->spec().k_up, nullptr);
  EXPECT_EQ(plan->spec().v_up, nullptr);
  const std::vector<float> want = RunWhole(spec, in.q, in.k, in.v);
  std::fill(up.begin(), up.end(), NAN);
  PagedCache cache(spec.cache, kRagged);
  EXPECT_EQ(Run(*plan, cache, cache.WholeStep(), in.q, in.k, in.v), want);
}

// However a sequence is cut into steps, the cache's bytes and every row are the same, bit for bit.
TEST_F(ReferenceAttentionTest, ChunkedIsWhole) {
  const Shape shape;
  const Inputs in(shape, NumTokens());
  for (const Codec codec : {Codec::kF16, Codec::kInt4, Codec::kInt3, Codec::kMinMax2}) {
    const AttentionSpec spec = FullSpec(shape, codec);
    const auto plan = Prepare(spec);
    PagedCache whole(spec.cache, kRagged), chunked(spec.cache, kRagged);
    const PagedStep all = whole.WholeStep();
    const std::vector<float> want = Run(*plan, whole, all, in.q, in.k, in.v);
    std::vector<int32_t> from(kRagged.size(), 0);
    for (const int32_t chunk : {1, 60, 5, 64}) {
      std::vector<int32_t> to;
      for (size_t i = 0; i < from.size(); ++i) to.push_back(std::min(from[i] + chunk, kRagged[i]));
      const PagedStep step = chunked.Step(from, to);
      EXPECT_EQ(Run(*plan, chunked, step, in.q, in.k, in.v), RowsOf(step, want, shape.q_width()));
      from = to;
    }
    ASSERT_EQ(from, kRagged);
    EXPECT_EQ(chunked.bytes(), whole.bytes());
    EXPECT_TRUE(chunked.GuardsIntact());
  }
}

TEST_F(ReferenceAttentionTest, BatchedIsAlone) {
  const Shape shape;
  const AttentionSpec spec = FullSpec(shape, Codec::kInt4);
  const auto plan = Prepare(spec);
  const Inputs in(shape, NumTokens());
  PagedCache together(spec.cache, kRagged);
  const std::vector<float> want = Run(*plan, together, together.WholeStep(), in.q, in.k, in.v);
  int64_t first = 0;
  for (const int32_t len : kRagged) {
    PagedCache alone(spec.cache, {len}, /*seed=*/99);
    PagedStep step = alone.WholeStep();
    for (int64_t& token : step.tokens) token += first;
    EXPECT_EQ(Run(*plan, alone, step, in.q, in.k, in.v), RowsOf(step, want, shape.q_width()));
    first += len;
  }
}

// Rows may lie further apart than what is stored of them.
TEST_F(ReferenceAttentionTest, AppendHonoursStrides) {
  const Shape shape;
  const AttentionSpec spec = FullSpec(shape);
  const auto plan = Prepare(spec);
  const Inputs in(shape, 2);
  const int64_t width = shape.kv_width(), k_stride = 2 * width, v_stride = width + 3;
  std::vector<float> k(2 * k_stride, NAN), v(2 * v_stride, NAN);
  for (int t = 0; t < 2; ++t) {
    std::copy_n(in.k.begin() + t * width, width, k.begin() + t * k_stride);
    std::copy_n(in.v.begin() + t * width, width, v.begin() + t * v_stride);
  }
  PagedCache plain(spec.cache, {2}), strided(spec.cache, {2});
  const PagedStep step = plain.WholeStep();
  ops_->AppendCache({.plan = plan.get(),
                     .cache = plain.View(step),
                     .k = in.k.data(),
                     .k_stride = width,
                     .v = in.v.data(),
                     .v_stride = width});
  ops_->AppendCache({.plan = plan.get(),
                     .cache = strided.View(step),
                     .k = k.data(),
                     .k_stride = k_stride,
                     .v = v.data(),
                     .v_stride = v_stride});
  EXPECT_EQ(strided.bytes(), plain.bytes());
}

}  // namespace
}  // namespace latentd
