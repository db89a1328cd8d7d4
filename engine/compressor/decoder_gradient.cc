#include "engine/compressor/decoder_gradient.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

// Of a window's time: the way back computes everything again, and then its derivative.
constexpr double kForwardShare = 0.3;

absl::StatusOr<TensorView> Require(const Checkpoint& checkpoint, const std::string& name) {
  const std::optional<TensorView> view = checkpoint.Find(name);
  if (!view.has_value()) {
    return absl::NotFoundError(absl::StrCat("the model has no tensor ", name));
  }
  return *view;
}

}  // namespace

DecoderGradient::DecoderGradient(const Checkpoint& checkpoint, int max_tokens,
                                 DenseAlgebra& algebra)
    : config_(checkpoint.config()),
      algebra_(algebra),
      attention_(checkpoint, max_tokens, algebra),
      mlp_(checkpoint, algebra),
      loss_(checkpoint, algebra) {}

absl::StatusOr<std::unique_ptr<DecoderGradient>> DecoderGradient::Create(
    const Checkpoint& checkpoint, int max_tokens, DenseAlgebra& algebra) {
  std::unique_ptr<DecoderGradient> decoder(new DecoderGradient(checkpoint, max_tokens, algebra));
  ASSIGN_OR_RETURN(decoder->token_embedding_, Require(checkpoint, "token_embedding"));
  if (decoder->config_.position == PositionKind::kLearned) {
    ASSIGN_OR_RETURN(decoder->position_embedding_, Require(checkpoint, "position_embedding"));
  }
  if (decoder->config_.embedding_norm) {
    ASSIGN_OR_RETURN(decoder->embedding_norm_, algebra.LoadNorm(checkpoint, "embedding_norm"));
  }
  RETURN_IF_ERROR(decoder->loss_.Load());
  return decoder;
}

void DecoderGradient::Embed(absl::Span<const int32_t> window, float* hidden) {
  std::vector<float> position(config_.hidden_dim);
  for (size_t t = 0; t < window.size(); ++t) {
    float* row = hidden + t * config_.hidden_dim;
    DequantizeRow(token_embedding_, window[t], absl::MakeSpan(row, config_.hidden_dim));
    if (position_embedding_.data == nullptr) continue;
    DequantizeRow(position_embedding_, static_cast<int64_t>(t), absl::MakeSpan(position));
    for (int i = 0; i < config_.hidden_dim; ++i) row[i] += position[i];
  }
  if (!config_.embedding_norm) return;
  algebra_.Norm(embedding_norm_, hidden, static_cast<int64_t>(window.size()), hidden);
}

absl::Status DecoderGradient::Forward(absl::Span<const int32_t> window, const Observer& observer,
                                      const Progress& progress) {
  const int64_t tokens = static_cast<int64_t>(window.size());
  hidden_.resize(tokens * config_.hidden_dim);
  Embed(window, hidden_.data());
  for (int l = 0; l < config_.num_layers; ++l) {
    RETURN_IF_ERROR(attention_.Load(l));
    attention_.Forward(tokens, hidden_.data());
    RETURN_IF_ERROR(algebra_.status());
    RETURN_IF_ERROR(observer(l, {.tokens = tokens,
                                 .input = attention_.input(),
                                 .k = {attention_.k_output(), nullptr},
                                 .v = {attention_.v_output(), nullptr}}));
    RETURN_IF_ERROR(mlp_.Load(l));
    mlp_.Forward(tokens, hidden_.data());
    RETURN_IF_ERROR(progress((l + 1.0) / config_.num_layers));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> DecoderGradient::Backward(absl::Span<const int32_t> window,
                                                 std::optional<uint64_t> seed,
                                                 const Observer& observer,
                                                 const Progress& progress) {
  const int64_t tokens = static_cast<int64_t>(window.size());
  const int layers = config_.num_layers;
  hidden_.resize(tokens * config_.hidden_dim);
  gradient_.resize(tokens * config_.hidden_dim);
  kept_.resize(2 * layers);
  Embed(window, hidden_.data());
  for (int l = 0; l < layers; ++l) {
    kept_[2 * l] = hidden_;
    RETURN_IF_ERROR(attention_.Load(l));
    attention_.Forward(tokens, hidden_.data());
    kept_[2 * l + 1] = hidden_;
    RETURN_IF_ERROR(mlp_.Load(l));
    mlp_.Forward(tokens, hidden_.data());
    RETURN_IF_ERROR(progress(kForwardShare * (l + 1) / layers));
  }
  ASSIGN_OR_RETURN(const double loss, loss_.Run(window, seed, hidden_.data(), gradient_.data()));
  for (int l = layers - 1; l >= 0; --l) {
    RETURN_IF_ERROR(mlp_.Load(l));
    mlp_.Backward(tokens, kept_[2 * l + 1].data(), gradient_.data());
    RETURN_IF_ERROR(attention_.Load(l));
    attention_.Backward(tokens, kept_[2 * l].data(), gradient_.data());
    RETURN_IF_ERROR(algebra_.status());
    RETURN_IF_ERROR(observer(l, {.tokens = tokens,
                                 .input = attention_.input(),
                                 .k = {attention_.k_output(), attention_.k_gradient()},
                                 .v = {attention_.v_output(), attention_.v_gradient()}}));
    RETURN_IF_ERROR(progress(1 - (1 - kForwardShare) * l / layers));
  }
  return loss;
}

}  // namespace latentd
