#pragma once

#include <cstdint>
#include <vector>

#include "kernels/reference/attention.h"

namespace latentd {

// One token of a block, as attention sees it: rows are read by ReadCacheRow and rebuilt by the
// plan's factors, in double. `layer` is the layout of the blocks that it reads: the plan's layer or
// the layer of its own pages. Borrows both.
class CachedRowReader {
 public:
  CachedRowReader(const ReferenceAttentionPlan& plan, const CacheLayer& layer)
      : plan_(plan), layer_(layer) {}

  // [head_dim] k_up h + k_bias: the key of one token before normalisation and RoPE.
  std::vector<double> PlainKey(const uint8_t* block, int token, int kv_head) const;
  // [head_dim] the key and the value of the token at `position`.
  std::vector<double> Key(const uint8_t* block, int64_t position, int kv_head) const;
  std::vector<double> Value(const uint8_t* block, int64_t position, int kv_head) const;

 private:
  std::vector<double> Row(const CachePlane& plane, const uint8_t* head, int token, int kv_head,
                          const std::vector<float>& up, const std::vector<float>& bias) const;

  const ReferenceAttentionPlan& plan_;
  const CacheLayer& layer_;
};

}  // namespace latentd
