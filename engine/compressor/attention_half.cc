#include "engine/compressor/attention_half.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/compressor/float_rows.h"
#include "engine/model/alibi.h"

namespace latentd {
namespace {

RopeFrequencies FrequenciesOf(const ModelConfig& config) {
  if (config.position != PositionKind::kRope) return {};
  return ComputeRopeFrequencies(config.rope, config.max_context);
}

AttentionGradient::Shape ShapeOf(const ModelConfig& config) {
  const float root = std::sqrt(static_cast<float>(config.head_dim));
  AttentionGradient::Shape shape{.num_heads = config.num_heads,
                                 .num_kv_heads = config.num_kv_heads,
                                 .head_dim = config.head_dim,
                                 .softmax_scale = FrequenciesOf(config).score_factor / root,
                                 .window = config.sliding_window};
  if (config.position == PositionKind::kAlibi) {
    shape.alibi_slopes = AlibiSlopes(config.num_heads, config.alibi_bias_max);
  }
  return shape;
}

// out = in + bias, row by row; an empty bias is zero.
void AddBias(ThreadPool& pool, const std::vector<float>& in, const std::vector<float>& bias,
             int64_t rows, int64_t dims, std::vector<float>* out) {
  out->resize(rows * dims);
  pool.ParallelFor(rows, pool.Grain(rows), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin * dims; i < end * dims; ++i) {
      (*out)[i] = bias.empty() ? in[i] : in[i] + bias[i % dims];
    }
  });
}

}  // namespace

AttentionHalf::AttentionHalf(const Checkpoint& checkpoint, int max_tokens, DenseAlgebra& algebra)
    : checkpoint_(checkpoint),
      config_(checkpoint.config()),
      algebra_(algebra),
      rope_(BuildRopeTable(FrequenciesOf(config_), max_tokens)),
      attention_(ShapeOf(config_), algebra.pool()) {}

absl::Status AttentionHalf::Load(int layer) {
  const std::string prefix = absl::StrCat("layers.", layer, ".");
  ASSIGN_OR_RETURN(norm_, algebra_.LoadNorm(checkpoint_, prefix + "attention_norm"));
  if (config_.qk_norm) {
    ASSIGN_OR_RETURN(q_norm_, algebra_.LoadNorm(checkpoint_, prefix + "q_norm"));
    ASSIGN_OR_RETURN(k_norm_, algebra_.LoadNorm(checkpoint_, prefix + "k_norm"));
    q_norm_.kind = k_norm_.kind = NormKind::kRms;
  }
  RETURN_IF_ERROR(algebra_.Load(checkpoint_, prefix + "q", &q_));
  RETURN_IF_ERROR(algebra_.Load(checkpoint_, prefix + "k", &k_));
  RETURN_IF_ERROR(algebra_.Load(checkpoint_, prefix + "v", &v_));
  RETURN_IF_ERROR(algebra_.Load(checkpoint_, prefix + "o", &o_));
  k_bias_ = std::exchange(k_.bias, {});  // added after the outputs were seen
  v_bias_ = std::exchange(v_.bias, {});
  return absl::OkStatus();
}

void AttentionHalf::PlaceHeads(const DenseNorm& norm, int64_t tokens, int heads,
                               std::vector<float>* raw, float* x) {
  const int dims = config_.head_dim;
  if (config_.qk_norm) {
    raw->assign(x, x + tokens * heads * dims);
    algebra_.Norm(norm, raw->data(), tokens * heads, x);
  }
  ThreadPool& pool = algebra_.pool();
  pool.ParallelFor(tokens, pool.Grain(tokens), [&](int64_t begin, int64_t end, int) {
    RotateRows(rope_, begin, end - begin, heads, dims, /*inverse=*/false, x);
  });
}

void AttentionHalf::PlaceHeadsBackward(const DenseNorm& norm, int64_t tokens, int heads,
                                       const std::vector<float>& raw, float* dx) {
  const int dims = config_.head_dim;
  ThreadPool& pool = algebra_.pool();
  pool.ParallelFor(tokens, pool.Grain(tokens), [&](int64_t begin, int64_t end, int) {
    RotateRows(rope_, begin, end - begin, heads, dims, /*inverse=*/true, dx);
  });
  if (config_.qk_norm) {
    algebra_.NormBackward(norm, raw.data(), dx, tokens * heads, /*accumulate=*/false, dx);
  }
}

void AttentionHalf::Project(int64_t tokens, const float* hidden) {
  input_.resize(tokens * config_.hidden_dim);
  k_output_.resize(tokens * config_.kv_dim());
  v_output_.resize(tokens * config_.kv_dim());
  q_heads_.resize(tokens * config_.q_dim());
  algebra_.Norm(norm_, hidden, tokens, input_.data());
  algebra_.Product(input_.data(), tokens, q_, /*accumulate=*/false, q_heads_.data());
  algebra_.Product(input_.data(), tokens, k_, /*accumulate=*/false, k_output_.data());
  algebra_.Product(input_.data(), tokens, v_, /*accumulate=*/false, v_output_.data());
  AddBias(algebra_.pool(), k_output_, k_bias_, tokens, config_.kv_dim(), &k_heads_);
  AddBias(algebra_.pool(), v_output_, v_bias_, tokens, config_.kv_dim(), &v_heads_);
  PlaceHeads(q_norm_, tokens, config_.num_heads, &q_raw_, q_heads_.data());
  PlaceHeads(k_norm_, tokens, config_.num_kv_heads, &k_raw_, k_heads_.data());
}

void AttentionHalf::Forward(int64_t tokens, float* hidden) {
  Project(tokens, hidden);
  attended_.resize(tokens * config_.q_dim());
  attention_.Forward(q_heads_.data(), k_heads_.data(), v_heads_.data(), tokens, attended_.data());
  algebra_.Product(attended_.data(), tokens, o_, /*accumulate=*/true, hidden);
}

void AttentionHalf::Backward(int64_t tokens, const float* hidden, float* gradient) {
  Project(tokens, hidden);
  attended_.resize(tokens * config_.q_dim());
  dk_.resize(tokens * config_.kv_dim());
  dv_.resize(tokens * config_.kv_dim());
  dinput_.resize(tokens * config_.hidden_dim);
  float* dq = attended_.data();
  algebra_.ProductBackward(gradient, tokens, o_, /*accumulate=*/false, dq);
  attention_.Backward(q_heads_.data(), k_heads_.data(), v_heads_.data(), dq, tokens, dq, dk_.data(),
                      dv_.data());
  PlaceHeadsBackward(q_norm_, tokens, config_.num_heads, q_raw_, dq);
  PlaceHeadsBackward(k_norm_, tokens, config_.num_kv_heads, k_raw_, dk_.data());
  algebra_.ProductBackward(dq, tokens, q_, /*accumulate=*/false, dinput_.data());
  algebra_.ProductBackward(dk_.data(), tokens, k_, /*accumulate=*/true, dinput_.data());
  algebra_.ProductBackward(dv_.data(), tokens, v_, /*accumulate=*/true, dinput_.data());
  algebra_.NormBackward(norm_, hidden, dinput_.data(), tokens, /*accumulate=*/true, gradient);
}

}  // namespace latentd
