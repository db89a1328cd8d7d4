#include "engine/compressor/loss_gradient.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "engine/compressor/float_rows.h"

namespace latentd {
namespace {

constexpr int64_t kChunkTokens = 4096;  // of the vocabulary

}  // namespace

absl::Status LossGradient::Load() {
  ASSIGN_OR_RETURN(norm_, algebra_.LoadNorm(checkpoint_, "final_norm"));
  const char* name = config_.tied_embeddings ? "token_embedding" : "lm_head";
  const std::optional<TensorView> head = checkpoint_.Find(name);
  if (!head.has_value()) {
    return absl::NotFoundError(absl::StrCat("the model has no tensor ", name));
  }
  head_ = *head;
  return absl::OkStatus();
}

absl::Status LossGradient::LoadChunk(int64_t first_token) {
  return algebra_.LoadWeight({.dtype = head_.dtype,
                              .rows = std::min(kChunkTokens, head_.rows - first_token),
                              .cols = head_.cols,
                              .data = head_.row(first_token)},
                             &chunk_);
}

void LossGradient::AddToSoftmax(const float* logits, Position* position) const {
  float largest = Largest(logits, chunk_.out);
  if (position->sum > 0) {
    largest = std::max(largest, position->largest);
    position->sum *= std::exp(double{position->largest} - largest);
  }
  std::vector<float> powers(chunk_.out);
  for (int64_t i = 0; i < chunk_.out; ++i) powers[i] = logits[i] - largest;
  ExpInPlace(powers.data(), chunk_.out);
  position->sum += Sum(powers.data(), chunk_.out);
  position->largest = largest;
}

void LossGradient::Differentiate(int64_t first_token, bool draws, float* logits,
                                 Position* position) const {
  const int64_t count = chunk_.out;
  const auto in_chunk = [&](int32_t label) {
    return label >= first_token && label < first_token + count;
  };
  if (in_chunk(position->label)) position->label_logit = logits[position->label - first_token];
  std::vector<float> powers(logits, logits + count);
  for (int64_t i = 0; i < count; ++i) powers[i] -= position->largest;
  ExpInPlace(powers.data(), count);
  if (draws && position->label < 0) {
    const double before = position->cumulative;
    position->cumulative += Sum(powers.data(), count);
    const bool last = first_token + count == head_.rows;
    if (position->cumulative > position->threshold || last) {
      double sum = before;
      int64_t i = 0;
      while (i < count - 1 && !((sum += powers[i]) > position->threshold)) ++i;
      position->label = static_cast<int32_t>(first_token + i);
      position->label_logit = logits[i];
    }
  }
  const float inverse = static_cast<float>(1 / position->sum);
  for (int64_t i = 0; i < count; ++i) logits[i] = powers[i] * inverse;
  if (in_chunk(position->label)) logits[position->label - first_token] -= 1.0f;
}

absl::StatusOr<double> LossGradient::Run(absl::Span<const int32_t> window,
                                         std::optional<uint64_t> seed, const float* hidden,
                                         float* gradient) {
  // The text's last position predicts nothing.
  const int64_t all = static_cast<int64_t>(window.size());
  const int64_t tokens = seed.has_value() ? all : all - 1;
  const int64_t hidden_dim = config_.hidden_dim;
  normed_.resize(tokens * hidden_dim);
  dnormed_.resize(tokens * hidden_dim);
  logits_.resize(tokens * std::min(kChunkTokens, head_.rows));
  positions_.assign(tokens, {});
  algebra_.Norm(norm_, hidden, tokens, normed_.data());

  ThreadPool& pool = algebra_.pool();
  const auto for_positions = [&](const auto& body) {
    pool.ParallelFor(tokens, pool.Grain(tokens), [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) body(logits_.data() + t * chunk_.out, &positions_[t]);
    });
  };
  for (int64_t first = 0; first < head_.rows; first += kChunkTokens) {
    RETURN_IF_ERROR(LoadChunk(first));
    algebra_.Product(normed_.data(), tokens, chunk_, /*accumulate=*/false, logits_.data());
    for_positions([&](const float* logits, Position* position) { AddToSoftmax(logits, position); });
  }
  RETURN_IF_ERROR(algebra_.status());
  for (int64_t t = 0; t < tokens; ++t) {
    Position& position = positions_[t];
    if (!std::isfinite(position.sum) || !std::isfinite(position.largest)) {
      return absl::InternalError(
          absl::StrCat("the model's logits at position ", t, " of a window are not finite"));
    }
    if (seed.has_value()) {
      position.threshold = RandomUniform(*seed, t) * position.sum;
    } else {
      position.label = window[t + 1];
    }
  }
  for (int64_t first = 0; first < head_.rows; first += kChunkTokens) {
    RETURN_IF_ERROR(LoadChunk(first));
    algebra_.Product(normed_.data(), tokens, chunk_, /*accumulate=*/false, logits_.data());
    for_positions([&](float* logits, Position* position) {
      Differentiate(first, seed.has_value(), logits, position);
    });
    algebra_.ProductBackward(logits_.data(), tokens, chunk_, /*accumulate=*/first > 0,
                             dnormed_.data());
  }
  algebra_.NormBackward(norm_, hidden, dnormed_.data(), tokens, /*accumulate=*/false, gradient);
  std::fill(gradient + tokens * hidden_dim, gradient + all * hidden_dim, 0.0f);
  double loss = 0;
  for (const Position& p : positions_) loss += std::log(p.sum) + p.largest - p.label_logit;
  return loss;
}

}  // namespace latentd
