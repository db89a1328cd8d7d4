#include "engine/compressor/mlp_half.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/compressor/float_rows.h"

namespace latentd {

absl::Status MlpHalf::Load(int layer) {
  const std::string prefix = absl::StrCat("layers.", layer, ".");
  ASSIGN_OR_RETURN(norm_, algebra_.LoadNorm(checkpoint_, prefix + "mlp_norm"));
  if (gated()) {
    RETURN_IF_ERROR(algebra_.Load(checkpoint_, prefix + "gate", &gate_));
  }
  RETURN_IF_ERROR(algebra_.Load(checkpoint_, prefix + "up", &up_));
  RETURN_IF_ERROR(algebra_.Load(checkpoint_, prefix + "down", &down_));
  return absl::OkStatus();
}

void MlpHalf::Project(int64_t tokens, const float* hidden) {
  normed_.resize(tokens * config_.hidden_dim);
  up_values_.resize(tokens * config_.mlp_dim);
  activated_.resize(tokens * config_.mlp_dim);
  algebra_.Norm(norm_, hidden, tokens, normed_.data());
  algebra_.Product(normed_.data(), tokens, up_, /*accumulate=*/false, up_values_.data());
  if (!gated()) return;
  gate_values_.resize(tokens * config_.mlp_dim);
  algebra_.Product(normed_.data(), tokens, gate_, /*accumulate=*/false, gate_values_.data());
}

void MlpHalf::Forward(int64_t tokens, float* hidden) {
  Project(tokens, hidden);
  ThreadPool& pool = algebra_.pool();
  const int64_t size = tokens * config_.mlp_dim;
  pool.ParallelFor(size, pool.Grain(size), [&](int64_t begin, int64_t end, int) {
    Activate(config_.activation, bent().data() + begin, up_values_.data() + begin, end - begin,
             activated_.data() + begin);
  });
  algebra_.Product(activated_.data(), tokens, down_, /*accumulate=*/true, hidden);
}

void MlpHalf::Backward(int64_t tokens, const float* hidden, float* gradient) {
  Project(tokens, hidden);
  algebra_.ProductBackward(gradient, tokens, down_, /*accumulate=*/false, activated_.data());
  ThreadPool& pool = algebra_.pool();
  const int64_t size = tokens * config_.mlp_dim;
  pool.ParallelFor(size, pool.Grain(size), [&](int64_t begin, int64_t end, int) {
    ActivateBackward(config_.activation, activated_.data() + begin, end - begin,
                     bent().data() + begin, up_values_.data() + begin);
  });
  algebra_.ProductBackward(up_values_.data(), tokens, up_, /*accumulate=*/false, normed_.data());
  if (gated()) {
    algebra_.ProductBackward(gate_values_.data(), tokens, gate_, /*accumulate=*/true,
                             normed_.data());
  }
  algebra_.NormBackward(norm_, hidden, normed_.data(), tokens, /*accumulate=*/true, gradient);
}

}  // namespace latentd
