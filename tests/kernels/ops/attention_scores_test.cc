// Scores (softmax_scale * q . k) that are large. A weight is off by the factor e^error, so what
// counts is a score's absolute error, which grows with the score: angles and factors that do for
// random keys need not do for these.
//
// Attention does not give its scores away. Here the values of the tokens that a row sees are rows
// of a Hadamard matrix, so each token's weight can be read from the output, and the logarithms of
// the weights are the scores but for a constant of the row. They are compared with the scores that
// doubles make of the same codes, with the angles of the true positions.
//
// Where the tolerances (ScoreTolerance) come from: |q| |k| softmax_scale is at most 61 here, as
// cosines are above .34. Errors of a product's terms are independent, so where a part r of each
// term is lost a score is off by 61 r / sqrt(head_dim) on average, and by 4 to 5 times that at
// worst among the thousands that are looked at. fp16 rounds query, key, factor and latent by 2e-4
// on average: .003 for heads of 64, .015 at worst. Integer factors may move a key by 1 % of its
// norm (params.h), which is .08 on average; the CPU's have .17 at worst.

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "tests/kernels/ops/attention_run.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

constexpr double kScore = 22.0;  // what every query makes of every key that it sees, about
constexpr int kVisible = 32;     // the window: rows of the Hadamard matrix
constexpr int kMostRows = 5;     // of a sequence in a step
constexpr int kPositions = 1 << 17;
constexpr double kReferenceTolerance = 1e-5;
const std::vector<int32_t> kKvLens = {20, 4110, kPositions};  // 4096: a page and a split begin

// 1 or -1, in the matrix of any power of two (Sylvester).
float Hadamard(uint32_t row, uint32_t column) {
  return std::popcount(row & column) % 2 == 0 ? 1.0f : -1.0f;
}

double Dot(const double* x, const double* y, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += x[i] * y[i];
  return sum;
}

double Angle(double theta, int pairs, int pair, int position) {
  return position * std::pow(theta, -static_cast<double>(pair) / pairs);
}

// Of kPositions: the angles of pages and those in a page, added.
RopeTable MakeRopeTable(double theta, int pairs) {
  RopeTable table{.pairs = pairs, .max_positions = kPositions};
  table.cos.reserve(int64_t{kPositions} * pairs), table.sin.reserve(int64_t{kPositions} * pairs);
  const auto row = [&](int position) {
    std::vector<std::complex<double>> turns;
    for (int j = 0; j < pairs; ++j) {
      turns.push_back(std::polar(1.0, Angle(theta, pairs, j, position)));
    }
    return turns;
  };
  std::vector<std::vector<std::complex<double>>> in_page;
  for (int t = 0; t < kBlockTokens; ++t) in_page.push_back(row(t));
  for (int start = 0; start < kPositions; start += kBlockTokens) {
    const std::vector<std::complex<double>> page = row(start);
    for (int t = 0; t < kBlockTokens; ++t) {
      for (int j = 0; j < pairs; ++j) {
        const std::complex<double> a = page[j], b = in_page[t][j];
        table.cos.push_back(static_cast<float>(a.real() * b.real() - a.imag() * b.imag()));
        table.sin.push_back(static_cast<float>(a.imag() * b.real() + a.real() * b.imag()));
      }
    }
  }
  return table;
}

// Sequences whose rows see kVisible tokens each (fewer at a sequence's start).
class ScoreCase {
 public:
  // `rope` outlives it, and has the base `theta`; of kReconstruct alone.
  ScoreCase(const AttentionShape& shape, const RopeTable* rope, double theta)
      : shape_(shape),
        theta_(theta),
        case_(shape),
        spec_(case_.spec()),
        cache_(spec_.cache, kKvLens, /*seed=*/1, kVisible + kMostRows),
        inputs_(case_, cache_.num_tokens()) {
    if (shape.path == AttentionPath::kReconstruct) spec_.rope = rope;
    if (shape.path != AttentionPath::kFull) {  // values are latents as they are
      const int dims = spec_.cache.v.dims();
      v_up_.assign(int64_t{case_.sink_width()} * dims, 0.0f);
      for (int i = 0; i < case_.sink_width(); ++i) v_up_[i * dims + i % spec_.head_dim] = 1.0f;
      spec_.v_up = v_up_.data();
    }
    ChooseInputs();
    reference_ = std::make_unique<AttentionRun>(case_, spec_, 1);
    reference_->AppendReference(inputs_, cache_, cache_.WholeStep());
  }

  const AttentionCase& attention() const { return case_; }
  const AttentionSpec& spec() const { return spec_; }
  const AttentionInputs& inputs() const { return inputs_; }
  PagedCache& cache() { return cache_; }

  std::vector<float> AttendReference(const PagedStep& step) {
    return reference_->AttendReference(inputs_, cache_, step);
  }
  // The largest error of the scores that made `out` of the sequences' last rows.
  double LargestError(const PagedStep& step, const std::vector<float>& out) {
    std::map<std::pair<int64_t, int>, std::vector<double>> keys;  // of a slot and KV head
    double largest = 0;
    for (int s = 0; s < static_cast<int>(std::ssize(kKvLens)); ++s) {
      for (int row = step.cu_q_lens[s]; row < step.cu_q_lens[s + 1]; ++row) {
        const int position = step.positions[row], first = std::max(position - kVisible + 1, 0);
        for (int head = 0; head < spec_.num_heads; ++head) {
          const float* q = &inputs_.q[step.tokens[row] * case_.q_width() + head * spec_.head_dim];
          const std::vector<double> query(q, q + spec_.head_dim);
          std::vector<double> scores;
          for (int p = first; p <= position; ++p) {
            const int kv_head = head / (spec_.num_heads / spec_.num_kv_heads);
            std::vector<double>& key = keys[{cache_.SlotOf(s, p), kv_head}];
            if (key.empty()) key = KeyOf(s, p, kv_head);
            scores.push_back(spec_.softmax_scale * Dot(query.data(), key.data(), spec_.head_dim));
          }
          const float* row_out = &out[int64_t{row} * case_.q_width() + head * spec_.head_dim];
          largest = std::max(largest, LargestError(s, first, scores, row_out));
        }
      }
    }
    return largest;
  }

 private:
  int KvHeadsOfLatent() const { return spec_.num_kv_heads / spec_.cache.k.latent_heads; }

  // Turns a head by a position's angles, or back.
  void Rotate(int position, bool back, double* x) const {
    const int pairs = spec_.head_dim / 2;
    for (int j = 0; j < pairs; ++j) {
      const double angle = Angle(theta_, pairs, j, back ? -position : position);
      const double cos = std::cos(angle), sin = std::sin(angle), a = x[j], b = x[pairs + j];
      x[j] = a * cos - b * sin;
      x[pairs + j] = b * cos + a * sin;
    }
  }

  // What a row of K at `position` is multiplied with to give the score of a query.
  std::vector<double> Meeting(int kv_head, int position, std::vector<double> query) const {
    for (double& x : query) x *= spec_.softmax_scale;
    if (shape_.path == AttentionPath::kFull) return query;
    if (shape_.path == AttentionPath::kReconstruct) Rotate(position, /*back=*/true, query.data());
    const int dims = spec_.cache.k.dims();
    std::vector<double> out(dims, 0.0);
    for (int i = 0; i < spec_.head_dim; ++i) {
      const float* up = spec_.k_up + (int64_t{kv_head} * spec_.head_dim + i) * dims;
      for (int d = 0; d < dims; ++d) out[d] += up[d] * query[i];
    }
    return out;
  }

  // All queries of a KV head lie near one direction, of which every key has as much as gives
  // kScore; beside it a key has about as much again in no direction.
  void ChooseInputs() {
    const int head_dim = spec_.head_dim, q_per_kv = spec_.num_heads / spec_.num_kv_heads;
    const std::vector<float> drawn = GaussianValues(spec_.num_kv_heads * head_dim, 31);
    const std::vector<double> directions(drawn.begin(), drawn.end());
    for (int64_t i = 0; i < std::ssize(inputs_.q); ++i) {
      const int64_t in_row = i % case_.q_width();
      const int64_t kv_head = in_row / (q_per_kv * head_dim);
      inputs_.q[i] = 0.1f * inputs_.q[i] +
                     static_cast<float>(directions[kv_head * head_dim + in_row % head_dim]);
    }
    const PagedStep whole = cache_.WholeStep();
    const int k_dims = case_.k_width() / spec_.cache.k.latent_heads, v_width = case_.v_width();
    const int v_dims = v_width / spec_.cache.v.latent_heads;
    for (int64_t t = 0; t < whole.rows(); ++t) {
      const int position = whole.positions[t];
      for (int i = 0; i < v_width; ++i) {
        inputs_.v[t * v_width + i] = Hadamard(position % kVisible, i % v_dims % kVisible);
      }
      for (int latent_head = 0; latent_head < spec_.cache.k.latent_heads; ++latent_head) {
        float* k = &inputs_.k[t * case_.k_width() + latent_head * k_dims];
        std::vector<double> row(k, k + k_dims);
        for (double& x : row) x *= 2;
        Aim(position, latent_head, directions, row);
        std::copy(row.begin(), row.end(), k);
      }
    }
  }
  // Brings the scores of the directions that meet a row of K to kScore (Kaczmarz).
  void Aim(int position, int latent_head, const std::vector<double>& directions,
           std::vector<double>& row) const {
    const int head_dim = spec_.head_dim, dims = static_cast<int>(std::ssize(row));
    std::vector<std::vector<double>> meeting;
    for (int i = 0; i < KvHeadsOfLatent(); ++i) {
      const int kv_head = latent_head * KvHeadsOfLatent() + i;
      const auto direction = directions.begin() + kv_head * head_dim;
      meeting.push_back(Meeting(kv_head, position, {direction, direction + head_dim}));
    }
    for (int round = 0; round < 20; ++round) {
      for (const std::vector<double>& m : meeting) {
        const double step =
            (kScore - Dot(m.data(), row.data(), dims)) / Dot(m.data(), m.data(), dims);
        for (int d = 0; d < dims; ++d) row[d] += step * m[d];
      }
    }
  }

  std::vector<float> Decoded(const CachePlane& plane, int sequence, int position, int64_t offset) {
    std::vector<float> row(plane.dims());
    const int64_t slot = cache_.SlotOf(sequence, position);
    const uint8_t* pool = cache_.bytes().data();
    ReadCacheRow(plane, pool + slot / kBlockTokens * spec_.cache.block_bytes() + offset,
                 static_cast<int>(slot % kBlockTokens), absl::MakeSpan(row));
    return row;
  }

  // The key of the same codes in double.
  std::vector<double> KeyOf(int sequence, int position, int kv_head) {
    const CacheLayer& layer = spec_.cache;
    const int64_t offset = layer.k_offset(0, kv_head / KvHeadsOfLatent());
    const std::vector<float> cached = Decoded(layer.k, sequence, position, offset);
    const std::vector<double> row(cached.begin(), cached.end());
    if (shape_.path == AttentionPath::kFull) return row;
    std::vector<double> key(spec_.head_dim, 0.0);
    for (int i = 0; i < spec_.head_dim; ++i) {
      const float* up = spec_.k_up + (int64_t{kv_head} * spec_.head_dim + i) * std::ssize(row);
      for (size_t d = 0; d < row.size(); ++d) key[i] += up[d] * row[d];
    }
    if (shape_.path == AttentionPath::kReconstruct) Rotate(position, /*back=*/false, key.data());
    return key;
  }

  // Of one row and query head, whose first visible position is `first`. Every segment of V tells
  // the weights anew.
  double LargestError(int sequence, int first, const std::vector<double>& scores,
                      const float* out) {
    const auto [least, most] = std::minmax_element(scores.begin(), scores.end());
    EXPECT_NEAR(*least, kScore, 5);  // else the test tells little
    EXPECT_NEAR(*most, kScore, 5);
    EXPECT_LT(*most - *least, 6);
    double sum = 0, largest = 0;
    for (const double score : scores) sum += std::exp(score - *most);
    const CachePlane& plane = spec_.cache.v;
    const std::vector<float> value = Decoded(plane, sequence, first, spec_.cache.v_offset(0, 0));
    int begin = 0;
    for (const Segment& segment : plane.segments) {
      for (size_t t = 0; t < scores.size(); ++t) {
        double weight = 0;
        for (int d = begin; d < begin + segment.dims; ++d) {
          weight += out[d] * Hadamard((first + t) % kVisible, d % kVisible);
        }
        weight /= segment.dims * std::abs(value[begin]);
        const double error = std::log(weight) - (scores[t] - *most - std::log(sum));
        if (!std::isfinite(error)) return INFINITY;
        largest = std::max(largest, std::abs(error));
      }
      begin += segment.dims;
    }
    return largest;
  }

  const AttentionShape shape_;
  const double theta_;
  const AttentionCase case_;
  AttentionSpec spec_;
  std::vector<float> v_up_;
  PagedCache cache_;
  AttentionInputs inputs_;
  std::unique_ptr<AttentionRun> reference_;
};

void ExpectSmallErrors(const AttentionShape& shape, const RopeTable* rope = nullptr,
                       double theta = 0) {
  SCOPED_TRACE(testing::Message() << Name(shape.path) << " " << Info(shape.k[0].codec).name
                                  << " of " << shape.k.size() << " segments, head_dim "
                                  << shape.head_dim << ", heads " << shape.num_heads << ", theta "
                                  << theta);
  ScoreCase c(shape, rope, theta);
  // The definition is held to the law, too.
  if (shape.num_heads == shape.num_kv_heads) {
    const PagedStep step = c.cache().LastStep(kMostRows);
    EXPECT_LE(c.LargestError(step, c.AttendReference(step)), kReferenceTolerance);
  }
  for (const PlanKind& kind : PlanKinds()) {
    AttentionRun run(c.attention(), c.spec(), 1, kind);
    if (run.refused()) continue;
    for (const int rows : {1, kMostRows}) {
      SCOPED_TRACE(testing::Message() << kind.name << ", rows " << rows);
      const PagedStep step = c.cache().LastStep(rows);
      EXPECT_LE(c.LargestError(step, run.Attend(c.inputs(), c.cache(), step)),
                ScoreTolerance(shape, rows == 1));
    }
  }
}

using AttentionScoresTest = OpsTest;

TEST_F(AttentionScoresTest, OfWhatIsCachedAreExact) {
  for (const int head_dim : {64, 128}) {
    for (const int q_per_kv : {1, 4}) {
      for (const Codec codec : {Codec::kF16, Codec::kInt8, Codec::kInt4}) {
        const AttentionShape shape = {.num_heads = 2 * q_per_kv,
                                      .head_dim = head_dim,
                                      .k = One(head_dim, codec),
                                      .v = One(head_dim, codec),
                                      .window = kVisible};
        ExpectSmallErrors(shape);
      }
    }
  }
}

// Codes of K for heads of `head_dim`.
std::vector<std::vector<Segment>> LatentKeys(int head_dim) {
  return {One(head_dim, Codec::kF16),
          One(head_dim, Codec::kInt8),
          One(head_dim, Codec::kInt4),
          {{.dims = head_dim / 2, .codec = Codec::kInt4},
           {.dims = head_dim / 2, .codec = Codec::kInt3},
           {.dims = head_dim / 2, .codec = Codec::kInt2}}};
}

void ExpectSmallErrorsOfLatents(AttentionPath path, int head_dim, const RopeTable* rope = nullptr,
                                double theta = 0) {
  for (const std::vector<Segment>& k : LatentKeys(head_dim)) {
    const bool mixed = k.size() > 1;
    const std::vector<Segment> mixed_v = {{.dims = head_dim / 2, .codec = Codec::kInt4},
                                          {.dims = head_dim / 2, .codec = Codec::kInt2}};
    for (const int q_per_kv : {1, 4}) {
      const AttentionShape shape = {.path = path,
                                    .num_heads = 2 * q_per_kv,
                                    .head_dim = head_dim,
                                    .k_latent_heads = 1,
                                    .v_latent_heads = 1,
                                    .k = k,
                                    .v = mixed ? mixed_v : One(head_dim, k[0].codec),
                                    .window = kVisible};
      ExpectSmallErrors(shape, rope, theta);
    }
  }
}

TEST_F(AttentionScoresTest, OfAbsorbedQueriesAreExact) {
  for (const int head_dim : {64, 128}) {
    ExpectSmallErrorsOfLatents(AttentionPath::kAbsorbed, head_dim);
  }
}

TEST_F(AttentionScoresTest, OfRebuiltKeysAreExactAtEveryPosition) {
  for (const int head_dim : {64, 128}) {
    for (const double theta : {1e4, 5e5}) {
      const RopeTable rope = MakeRopeTable(theta, head_dim / 2);
      ExpectSmallErrorsOfLatents(AttentionPath::kReconstruct, head_dim, &rope, theta);
    }
  }
}

}  // namespace
}  // namespace latentd
