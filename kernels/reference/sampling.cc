#include "kernels/reference/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "base/check.h"
#include "base/random.h"

namespace latentd {
namespace {

bool AnyFinite(const std::vector<double>& logits) {
  return std::any_of(logits.begin(), logits.end(), [](double l) { return std::isfinite(l); });
}

// Ids in order of falling logit, rising id among equals.
std::vector<int32_t> Ranked(const std::vector<double>& logits) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  return ids;
}

// The ids that have a logit, in their order.
std::vector<int32_t> InVocab(absl::Span<const int32_t> ids, size_t vocab) {
  std::vector<int32_t> known;
  for (const int32_t id : ids) {
    if (id >= 0 && static_cast<size_t>(id) < vocab) known.push_back(id);
  }
  return known;
}

void Penalize(const SampleRow& row, std::vector<double>& logits) {
  const std::vector<int32_t> tokens = InVocab(row.tokens, logits.size());
  const std::vector<int32_t> output =
      InVocab(row.tokens.subspan(row.num_prompt_tokens), logits.size());
  for (const int32_t id : std::set<int32_t>(tokens.begin(), tokens.end())) {
    double& l = logits[id];
    l = l > 0 ? l / row.repetition_penalty : l * row.repetition_penalty;
  }
  for (const int32_t id : std::set<int32_t>(output.begin(), output.end())) {
    logits[id] -= row.presence_penalty;
  }
  for (const int32_t id : output) logits[id] -= row.frequency_penalty;
}

// Steps 5 and 6 of the header; `logits` has a finite value.
int32_t Draw(const SampleRow& row, const std::vector<double>& logits) {
  std::vector<int32_t> kept = Ranked(logits);
  const double max = logits[kept[0]];
  std::vector<double> weights(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    weights[i] = std::exp((logits[i] - max) / row.temperature);
  }
  const auto sum = [&] {
    double total = 0;
    for (const int32_t id : kept) total += weights[id];
    return total;
  };
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < kept.size()) kept.resize(row.top_k);
  if (row.top_p < 1.0f) {
    const double target = row.top_p * sum();
    double running = 0;
    size_t count = 0;
    do {
      running += weights[kept[count++]];
    } while (running < target && count < kept.size());
    kept.resize(count);
  }
  std::erase_if(kept, [&](int32_t id) { return weights[id] < row.min_p; });
  std::sort(kept.begin(), kept.end());
  const double u = RandomUniform(row.seed, static_cast<uint64_t>(row.position)) * sum();
  double running = 0;
  for (const int32_t id : kept) {
    running += weights[id];
    if (running > u) return id;
  }
  return kept.back();
}

}  // namespace

SampleResult ReferenceSampleRow(const float* logits, int64_t vocab, const SampleRow& row) {
  SampleResult failed;
  failed.ok = false;
  std::vector<double> values(logits, logits + vocab);
  const auto is_bad = [](double l) { return std::isnan(l) || l == INFINITY; };
  if (std::any_of(values.begin(), values.end(), is_bad) || !AnyFinite(values)) return failed;

  double log_total = 0;
  std::vector<int32_t> likeliest;
  if (row.num_logprobs >= 0) {
    likeliest = Ranked(values);
    const double max = values[likeliest[0]];
    for (const double l : values) log_total += std::exp(l - max);
    log_total = max + std::log(log_total);
    likeliest.resize(std::min<size_t>(row.num_logprobs, likeliest.size()));
  }

  Penalize(row, values);
  for (const int32_t id : InVocab(row.banned, values.size())) values[id] = -INFINITY;
  if (!AnyFinite(values)) return failed;

  SampleResult result;
  result.token_id =
      row.temperature == 0.0f
          ? static_cast<int32_t>(std::max_element(values.begin(), values.end()) - values.begin())
          : Draw(row, values);
  if (row.num_logprobs >= 0) {
    const auto logprob = [&](int32_t id) { return static_cast<float>(logits[id] - log_total); };
    result.logprob = logprob(result.token_id);
    for (const int32_t id : likeliest) {
      result.top.push_back({.token_id = id, .logprob = logprob(id)});
    }
  }
  return result;
}

float ReferenceLogProbability(const float* logits, int64_t vocab, int32_t token) {
  const float largest = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(logits[i] - largest));
  return static_cast<float>(static_cast<double>(logits[token] - largest) - std::log(sum));
}

}  // namespace latentd
