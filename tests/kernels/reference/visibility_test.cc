// Which form of a token a row sees (codes, own page, exact sink, nothing), against float64 loops
// over contiguous rows that know no pages.

#include <cmath>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "kernels/ops.h"
#include "tests/testing/attention_case.h"

namespace latentd {
namespace {

std::vector<Segment> One(int dims, Codec codec) { return {{.dims = dims, .codec = codec}}; }

float AsHalf(float x) { return HalfToFloat(FloatToHalf(x)); }

// Rows [tokens, latent_heads x dims] as the plane's codes give them back.
std::vector<float> Coded(const CachePlane& plane, std::vector<float> rows) {
  std::vector<uint8_t> head(plane.head_bytes());
  const int dims = plane.dims();
  for (size_t start = 0; start < rows.size(); start += dims) {
    const absl::Span<float> row(rows.data() + start, dims);
    WriteCacheRow(plane, head.data(), 0, row);
    ReadCacheRow(plane, head.data(), 0, row);
  }
  return rows;
}

std::vector<float> Halves(std::vector<float> rows) {
  for (float& x : rows) x = AsHalf(x);
  return rows;
}

// [tokens, num_kv_heads x head_dim] = up latents + bias; full rows are as they are.
std::vector<double> Rebuilt(const AttentionSpec& spec, const CachePlane& plane, const float* up,
                            const float* bias, const std::vector<float>& rows) {
  if (up == nullptr) return std::vector<double>(rows.begin(), rows.end());
  const int dims = plane.dims(), width = spec.num_kv_heads * spec.head_dim;
  std::vector<double> rebuilt;
  for (size_t start = 0; start < rows.size(); start += plane.latent_heads * dims) {
    for (int r = 0; r < width; ++r) {
      const int kv_head = r / spec.head_dim;
      const int head = kv_head * plane.latent_heads / spec.num_kv_heads;
      double sum = bias == nullptr ? 0.0 : bias[r];
      for (int d = 0; d < dims; ++d) {
        sum += static_cast<double>(up[r * dims + d]) * rows[start + head * dims + d];
      }
      rebuilt.push_back(sum);
    }
  }
  return rebuilt;
}

// Normalises and rotates the keys of one head.
void FinishKey(const AttentionSpec& spec, int64_t position, double* key) {
  if (spec.k_norm != nullptr) {
    double squares = 0;
    for (int i = 0; i < spec.head_dim; ++i) squares += key[i] * key[i];
    const double root = std::sqrt(squares / spec.head_dim + spec.k_norm_epsilon);
    for (int i = 0; i < spec.head_dim; ++i) key[i] *= spec.k_norm[i] / root;
  }
  if (spec.rope == nullptr) return;
  for (int j = 0; j < spec.rope->pairs; ++j) {
    const double angle = position * std::pow(1e4, -static_cast<double>(j) / spec.rope->pairs);
    const double x = key[j], y = key[j + spec.rope->pairs];
    key[j] = x * std::cos(angle) - y * std::sin(angle);
    key[j + spec.rope->pairs] = y * std::cos(angle) + x * std::sin(angle);
  }
}

// One form of all tokens: keys and values [tokens, num_kv_heads x head_dim].
struct Form {
  std::vector<double> k, v;
};

Form LatentForm(const AttentionSpec& spec, const PagedStep& step, const std::vector<float>& k,
                const std::vector<float>& v) {
  Form form = {.k = Rebuilt(spec, spec.cache.k, spec.k_up, spec.k_bias, k),
               .v = Rebuilt(spec, spec.cache.v, spec.v_up, spec.v_bias, v)};
  for (size_t h = 0; h * spec.head_dim < form.k.size(); ++h) {
    FinishKey(spec, step.positions[h / spec.num_kv_heads], form.k.data() + h * spec.head_dim);
  }
  return form;
}

std::vector<float> BruteForce(const AttentionSpec& spec, const AttentionInputs& in,
                              const PagedStep& step) {
  const Form coded = LatentForm(spec, step, Coded(spec.cache.k, in.k), Coded(spec.cache.v, in.v));
  const Form own = LatentForm(spec, step, Halves(in.k), Halves(in.v));
  const std::vector<float> sink_k = Halves(in.sink_k), sink_v = Halves(in.sink_v);
  const Form sinks = {.k = {sink_k.begin(), sink_k.end()}, .v = {sink_v.begin(), sink_v.end()}};
  const int64_t width = spec.num_kv_heads * spec.head_dim;
  std::vector<float> out;
  for (int64_t row = 0; row < step.rows() * spec.num_heads; ++row) {
    const int64_t t = row / spec.num_heads, head = row % spec.num_heads;
    const int64_t n = step.positions[t], first_token = t - n;
    const int64_t column = head / (spec.num_heads / spec.num_kv_heads) * spec.head_dim;
    double total = 0;
    std::vector<double> sums(spec.head_dim, 0.0);
    for (int64_t p = 0; p <= n; ++p) {
      if (spec.window > 0 && p <= n - spec.window) continue;
      const bool is_own = spec.cache.own_page && p / 64 == n / 64;
      const Form& form = p < spec.cache.sinks ? sinks : is_own ? own : coded;
      const int64_t at = (first_token + p) * width + column;
      double score = 0;
      for (int i = 0; i < spec.head_dim; ++i)
        score += in.q[row * spec.head_dim + i] * form.k[at + i];
      score *= spec.softmax_scale;
      if (spec.alibi_slopes != nullptr)
        score -= spec.alibi_slopes[head] * static_cast<double>(n - p);
      total += std::exp(score);
      for (int i = 0; i < spec.head_dim; ++i) sums[i] += std::exp(score) * form.v[at + i];
    }
    for (const double sum : sums) out.push_back(static_cast<float>(sum / total));
  }
  return out;
}

class VisibilityTest : public ::testing::Test {
 protected:
  std::vector<float> Run(const AttentionCase& c, const AttentionPlan& plan, PagedCache& cache,
                         const PagedStep& step, const AttentionInputs& in) {
    const AppendRows rows(c, in, step);
    const std::vector<float> q = RowsOf(step, in.q, c.q_width());
    ops_->AppendCache(rows.Params(plan, cache.View(step)));
    std::vector<float> out(q.size(), NAN);
    ops_->Attention({.plan = &plan, .cache = cache.View(step), .q = q.data(), .out = out.data()});
    EXPECT_TRUE(cache.GuardsIntact());
    EXPECT_TRUE(step.step_pages->GuardsIntact());
    return out;
  }
  std::unique_ptr<AttentionPlan> Prepare(const AttentionCase& c) {
    auto plan = ops_->PrepareAttention(c.spec());
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  }
  void ExpectBruteForce(const AttentionShape& shape, const std::vector<int32_t>& kv_lens,
                        double tolerance) {
    const AttentionCase c(shape);
    PagedCache cache(c.spec().cache, kv_lens);
    const AttentionInputs in(c, cache.num_tokens());
    const PagedStep step = cache.WholeStep();
    const std::vector<float> got = Run(c, *Prepare(c), cache, step, in);
    const std::vector<float> want = BruteForce(c.spec(), in, step);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], tolerance) << "value " << i;
  }

  const std::unique_ptr<Ops> ops_ = CreateReferenceOps();
};

const std::vector<int32_t> kRagged = {0, 1, 63, 64, 3, 150};

// Codes of two bits, so that no form can be taken for another.
AttentionShape CoarseShape(AttentionPath path) {
  return {.path = path,
          .head_dim = 16,
          .k_latent_heads = 1,
          .k = {{.dims = 16, .codec = Codec::kInt3}, {.dims = 16, .codec = Codec::kInt2}},
          .v = One(16, Codec::kInt2),
          .biases = true};
}

TEST_F(VisibilityTest, SinksAreExactAndTheOwnPageIsIn16Bits) {
  for (const AttentionPath path : {AttentionPath::kReconstruct, AttentionPath::kAbsorbed}) {
    for (const int sinks : {0, 1, 4, 64}) {
      for (const bool own_page : {false, true}) {
        SCOPED_TRACE(testing::Message() << Name(path) << ", " << sinks << " sinks, " << own_page);
        AttentionShape shape = CoarseShape(path);
        shape.sinks = sinks;
        shape.own_page = own_page;
        ExpectBruteForce(shape, kRagged, 2e-5);
      }
    }
  }
}

TEST_F(VisibilityTest, AWindowHidesSinksToo) {
  AttentionShape full = {.head_dim = 16, .k = One(16, Codec::kF16), .v = One(16, Codec::kF16)};
  AttentionShape latent = CoarseShape(AttentionPath::kReconstruct);
  latent.sinks = 4;
  latent.own_page = true;
  for (AttentionShape shape : {full, latent}) {
    for (const int window : {1, 2, 64, 100, 1000}) {
      SCOPED_TRACE(window);
      shape.window = window;
      ExpectBruteForce(shape, kRagged, 2e-5);
    }
  }
}

TEST_F(VisibilityTest, AlibiFavoursWhatIsNear) {
  AttentionShape full = {.head_dim = 16, .k = One(16, Codec::kF16), .v = One(16, Codec::kF16)};
  AttentionShape latent = CoarseShape(AttentionPath::kAbsorbed);
  latent.sinks = 4;
  latent.own_page = true;
  for (AttentionShape shape : {full, latent}) {
    shape.alibi = true;
    ExpectBruteForce(shape, kRagged, 2e-5);
  }
}

// The cached inverse norms are halves: each moves its key by up to 2^-11.
TEST_F(VisibilityTest, KeysAreNormalisedByTheNormOfWhatIsSeen) {
  for (const bool own_page : {false, true}) {
    AttentionShape shape = CoarseShape(AttentionPath::kReconstruct);
    shape.k_norm = true;
    shape.sinks = 2;
    shape.own_page = own_page;
    ExpectBruteForce(shape, kRagged, 2e-3);
  }
}

// ---- The law: how a sequence is cut into steps does not change a bit ----

std::vector<AttentionShape> LawShapes() {
  std::vector<AttentionShape> shapes;
  for (const AttentionPath path : {AttentionPath::kReconstruct, AttentionPath::kAbsorbed}) {
    AttentionShape shape = CoarseShape(path);
    shape.sinks = 4;
    shape.own_page = true;
    shape.k_norm = path == AttentionPath::kReconstruct;
    shape.alibi = path == AttentionPath::kAbsorbed;
    shapes.push_back(shape);
    shape.window = 70;
    shapes.push_back(shape);
  }
  return shapes;
}

TEST_F(VisibilityTest, ChunkedIsWholeWithBlocksFreedBehindTheWindow) {
  const std::vector<int32_t> kv_lens = {0, 1, 65, 200};
  for (const AttentionShape& shape : LawShapes()) {
    const AttentionCase c(shape);
    const auto plan = Prepare(c);
    PagedCache whole(c.spec().cache, kv_lens);
    const AttentionInputs in(c, whole.num_tokens());
    const std::vector<float> want = Run(c, *plan, whole, whole.WholeStep(), in);
    for (const std::vector<int32_t>& chunks :
         {std::vector<int32_t>{1, 60, 5, 134}, {64, 64, 64, 64}, {3, 197}, {130, 1, 69}}) {
      PagedCache chunked(c.spec().cache, kv_lens);
      std::vector<int32_t> from(kv_lens.size(), 0);
      for (const int32_t chunk : chunks) {
        std::vector<int32_t> to;
        for (size_t i = 0; i < from.size(); ++i) {
          to.push_back(std::min(from[i] + chunk, kv_lens[i]));
          if (shape.window == 0) continue;
          chunked.FreeBefore(static_cast<int>(i), from[i] - shape.window + 1);
        }
        const PagedStep step = chunked.Step(from, to);
        EXPECT_EQ(Run(c, *plan, chunked, step, in), RowsOf(step, want, c.q_width()));
        from = to;
      }
      ASSERT_EQ(from, kv_lens);
      if (shape.window == 0) {
        EXPECT_EQ(chunked.block_bytes(), whole.block_bytes());
      }
    }
  }
}

TEST_F(VisibilityTest, BatchedIsAlone) {
  const std::vector<int32_t> kv_lens = {70, 0, 1, 130};
  for (const AttentionShape& shape : LawShapes()) {
    const AttentionCase c(shape);
    const auto plan = Prepare(c);
    PagedCache together(c.spec().cache, kv_lens);
    const AttentionInputs in(c, together.num_tokens());
    const std::vector<float> want = Run(c, *plan, together, together.WholeStep(), in);
    int64_t first = 0;
    for (const int32_t len : kv_lens) {
      PagedCache alone(c.spec().cache, {len}, /*seed=*/99);
      PagedStep step = alone.WholeStep();
      for (int64_t& token : step.tokens) token += first;
      EXPECT_EQ(Run(c, *plan, alone, step, in), RowsOf(step, want, c.q_width()));
      first += len;
    }
  }
}

}  // namespace
}  // namespace latentd
