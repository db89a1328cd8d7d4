#include "kernels/cpu/sample.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/random.h"

namespace latentd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kChunk = 64;
constexpr int kLanes = 16;

struct Candidate {
  float x;
  int32_t id;
};

bool Before(const Candidate& a, const Candidate& b) { return a.x != b.x ? a.x > b.x : a.id < b.id; }

// What is asked of one row's values, in the order (x down, id up), without ordering more of them
// than that takes.
class OrderedRow {
 public:
  // x[vocab] outlives the object.
  OrderedRow(const float* x, int64_t vocab) : x_(x), vocab_(vocab) {
    chunk_max_.reserve((vocab + kChunk - 1) / kChunk);
    for (int64_t begin = 0; begin < vocab; begin += kChunk) AddChunk(begin);
    max_ = *std::max_element(chunk_max_.begin(), chunk_max_.end());
  }

  bool has_nan() const { return has_nan_; }
  float max() const { return max_; }

  // The smallest id among the largest values.
  int32_t argmax() const {
    const auto chunk = std::find(chunk_max_.begin(), chunk_max_.end(), max_) - chunk_max_.begin();
    int64_t id = chunk * kChunk;
    while (x_[id] != max_) ++id;
    return static_cast<int32_t>(id);
  }

  // The first `count` candidates, 1 <= count <= vocab. The count-th largest of the chunks' maxima
  // is a bound that at least `count` values reach, and usually few more.
  std::vector<Candidate> First(int64_t count) const {
    float bound = -kInfinity;
    if (count <= static_cast<int64_t>(chunk_max_.size())) {
      std::vector<float> maxima = chunk_max_;
      std::nth_element(maxima.begin(), maxima.begin() + (count - 1), maxima.end(),
                       std::greater<float>());
      bound = maxima[count - 1];
    }
    std::vector<Candidate> first = AtLeast(bound);
    if (static_cast<int64_t>(first.size()) > count) {
      std::nth_element(first.begin(), first.begin() + count, first.end(), Before);
      first.resize(count);
    }
    std::sort(first.begin(), first.end(), Before);
    return first;
  }

  // The values of at least `bound`, by rising id.
  std::vector<Candidate> AtLeast(float bound) const {
    std::vector<Candidate> found;
    for (size_t chunk = 0; chunk < chunk_max_.size(); ++chunk) {
      if (chunk_max_[chunk] < bound) continue;
      const int64_t begin = static_cast<int64_t>(chunk) * kChunk;
      const int64_t end = std::min(begin + kChunk, vocab_);
      for (int64_t id = begin; id < end; ++id) {
        if (x_[id] >= bound) found.push_back({x_[id], static_cast<int32_t>(id)});
      }
    }
    return found;
  }

 private:
  // Lane by lane, so that it compiles to vector code.
  void AddChunk(int64_t begin) {
    const int64_t size = std::min(kChunk, vocab_ - begin);
    const float* x = x_ + begin;
    float max = -kInfinity;
    bool nan = false;
    int64_t i = 0;
    if (size == kChunk) {
      float lane_max[kLanes];
      int lane_nan[kLanes] = {};
      std::fill_n(lane_max, kLanes, -kInfinity);
      for (; i < kChunk; i += kLanes) {
        for (int l = 0; l < kLanes; ++l) {
          lane_max[l] = x[i + l] > lane_max[l] ? x[i + l] : lane_max[l];
          lane_nan[l] |= x[i + l] != x[i + l];
        }
      }
      for (int l = 0; l < kLanes; ++l) {
        max = std::max(max, lane_max[l]);
        nan |= lane_nan[l] != 0;
      }
    }
    for (; i < size; ++i) {
      max = x[i] > max ? x[i] : max;
      nan |= x[i] != x[i];
    }
    chunk_max_.push_back(max);
    has_nan_ |= nan;
  }

  const float* const x_;
  const int64_t vocab_;
  std::vector<float> chunk_max_;
  float max_ = -kInfinity;
  bool has_nan_ = false;
};

bool ChangesLogits(const SampleRow& row) {
  return row.repetition_penalty != 1.0f || row.presence_penalty != 0.0f ||
         row.frequency_penalty != 0.0f || !row.banned.empty();
}

// x with penalties and bans applied. Ids outside of the vocabulary have no logit and are passed
// over.
void ApplyPenalties(const SampleRow& row, std::vector<float>* x) {
  const auto in_vocab = [&](int32_t id) { return id >= 0 && id < static_cast<int64_t>(x->size()); };
  const size_t prompt = std::min<size_t>(row.num_prompt_tokens, row.tokens.size());
  std::vector<int32_t> ids(row.tokens.begin(), row.tokens.end());
  std::sort(ids.begin() + prompt, ids.end());
  std::vector<int32_t> output(ids.begin() + prompt, ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (row.repetition_penalty != 1.0f) {
    for (int32_t id : ids) {
      if (!in_vocab(id)) continue;
      float& value = (*x)[id];
      value = value > 0 ? value / row.repetition_penalty : value * row.repetition_penalty;
    }
  }
  for (size_t begin = 0, end = 0; begin < output.size(); begin = end) {
    while (end < output.size() && output[end] == output[begin]) ++end;
    if (!in_vocab(output[begin])) continue;
    (*x)[output[begin]] -=
        row.presence_penalty + row.frequency_penalty * static_cast<float>(end - begin);
  }
  for (int32_t id : row.banned) {
    if (in_vocab(id)) (*x)[id] = -kInfinity;
  }
}

// Cuts `kept` (by rising id) to the shortest prefix of the order whose share of the weights reaches
// top_p. Bins of falling weight tell in which of them the prefix ends, so only that bin is ordered.
template <typename WeightOf>
void CutToTopP(const SampleRow& row, float max, const WeightOf& weight,
               std::vector<Candidate>* kept) {
  constexpr int kBins = 1024;
  constexpr float kBinsPerUnit = 32.0f;  // of (max - x) / temperature
  const auto bin_of = [&](float x) {
    const float bin = (max - x) / row.temperature * kBinsPerUnit;
    return bin < kBins - 1 ? static_cast<int>(bin) : kBins - 1;
  };
  std::vector<double> bins(kBins, 0.0);
  double total = 0.0;
  for (const Candidate& c : *kept) {
    const float w = weight(c.x);
    bins[bin_of(c.x)] += w;
    total += w;
  }
  const double reach = row.top_p * total;
  double sum = 0.0;
  int last_bin = 0;
  while (last_bin < kBins - 1 && sum + bins[last_bin] < reach) sum += bins[last_bin++];
  std::vector<Candidate> in_bin;
  for (const Candidate& c : *kept) {
    if (bin_of(c.x) == last_bin) in_bin.push_back(c);
  }
  std::sort(in_bin.begin(), in_bin.end(), Before);
  // The bin's last ends the prefix at the latest, however the sums have rounded.
  size_t end = 0;
  while (end + 1 < in_bin.size() && (sum += weight(in_bin[end].x)) < reach) ++end;
  const Candidate last = in_bin[end];
  std::erase_if(*kept, [&](const Candidate& c) { return Before(last, c); });
}

// The first of `count` candidates whose running weight exceeds the row's share u of their sum.
// candidate(i) has rising ids.
template <typename CandidateAt, typename WeightOf>
int32_t DrawById(int64_t count, const SampleRow& row, const CandidateAt& candidate,
                 const WeightOf& weight) {
  double total = 0.0;
  const auto kept_weight = [&](float x) {
    const float w = weight(x);
    return w < row.min_p ? 0.0f : w;
  };
  for (int64_t i = 0; i < count; ++i) total += kept_weight(candidate(i).x);
  const double target = RandomUniform(row.seed, static_cast<uint64_t>(row.position)) * total;
  double sum = 0.0;
  int32_t last = -1;
  for (int64_t i = 0; i < count && (last < 0 || sum <= target); ++i) {
    const Candidate c = candidate(i);
    const float w = kept_weight(c.x);
    if (w == 0.0f) continue;
    last = c.id;
    sum += w;
  }
  return last;
}

int32_t Draw(const float* x, int64_t vocab, const SampleRow& row, const OrderedRow& order) {
  const float max = order.max();
  const auto weight = [&](float value) { return std::exp((value - max) / row.temperature); };
  const bool cut_to_top_k = row.top_k > 0 && row.top_k < vocab;
  if (!cut_to_top_k && row.top_p >= 1.0f) {
    const auto all = [&](int64_t id) { return Candidate{x[id], static_cast<int32_t>(id)}; };
    return DrawById(vocab, row, all, weight);
  }
  std::vector<Candidate> kept = cut_to_top_k ? order.First(row.top_k) : order.AtLeast(-kInfinity);
  if (cut_to_top_k) {
    std::sort(kept.begin(), kept.end(),
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  }
  if (row.top_p < 1.0f) CutToTopP(row, max, weight, &kept);
  const auto of_kept = [&](int64_t i) { return kept[i]; };
  return DrawById(static_cast<int64_t>(kept.size()), row, of_kept, weight);
}

// Log of the sum of e^(logit - max).
double LogTotal(const float* logits, int64_t vocab, float max) {
  double total = 0.0;
  for (int64_t id = 0; id < vocab; ++id) total += std::exp(logits[id] - max);
  return std::log(total);
}

void AddLogprobs(const float* logits, int64_t vocab, int num_logprobs, const OrderedRow& order,
                 SampleResult* result) {
  const float max = order.max();
  const double log_total = LogTotal(logits, vocab, max);
  const auto logprob = [&](float x) { return static_cast<float>((double{x} - max) - log_total); };
  result->logprob = logprob(logits[result->token_id]);
  const int64_t count = std::min<int64_t>(num_logprobs, vocab);
  if (count == 0) return;
  for (const Candidate& c : order.First(count)) result->top.push_back({c.id, logprob(c.x)});
}

bool CanDraw(const OrderedRow& order) {
  // The largest is -inf when no logit is finite, +inf when one has overflowed.
  return !order.has_nan() && std::isfinite(order.max());
}

}  // namespace

SampleResult CpuSampleRow(const float* logits, int64_t vocab, const SampleRow& row) {
  SampleResult result;
  result.ok = false;
  const OrderedRow raw(logits, vocab);
  if (!CanDraw(raw)) return result;
  if (ChangesLogits(row)) {
    std::vector<float> x(logits, logits + vocab);
    ApplyPenalties(row, &x);
    const OrderedRow order(x.data(), vocab);
    if (!CanDraw(order)) return result;
    result.token_id = row.temperature == 0.0f ? order.argmax() : Draw(x.data(), vocab, row, order);
  } else {
    result.token_id = row.temperature == 0.0f ? raw.argmax() : Draw(logits, vocab, row, raw);
  }
  result.ok = true;
  if (row.num_logprobs >= 0) AddLogprobs(logits, vocab, row.num_logprobs, raw, &result);
  return result;
}

float CpuLogProbability(const float* logits, int64_t vocab, int32_t token) {
  const float max = *std::max_element(logits, logits + vocab);
  return static_cast<float>((double{logits[token]} - max) - LogTotal(logits, vocab, max));
}

}  // namespace latentd
