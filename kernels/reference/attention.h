#pragma once

#include <memory>
#include <vector>

#include "kernels/ops.h"

namespace latentd {

// The reference's plan: the factors as they came.
class ReferenceAttentionPlan final : public AttentionPlan {
 public:
  explicit ReferenceAttentionPlan(const AttentionSpec& spec);

  const std::vector<float>& k_up() const { return k_up_; }
  const std::vector<float>& v_up() const { return v_up_; }
  const std::vector<float>& k_bias() const { return k_bias_; }  // empty: none
  const std::vector<float>& v_bias() const { return v_bias_; }
  const std::vector<float>& k_norm() const { return k_norm_; }              // empty: none
  const std::vector<float>& alibi_slopes() const { return alibi_slopes_; }  // empty: none

 private:
  std::vector<float> k_up_, v_up_, k_bias_, v_bias_, k_norm_, alibi_slopes_;
};

// What AppendCache and Attention mean; see params.h.
void ReferenceAppendCache(const AppendCacheParams& p);
void ReferenceAttention(const AttentionParams& p);

}  // namespace latentd
