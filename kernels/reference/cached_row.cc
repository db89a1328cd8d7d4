#include "kernels/reference/cached_row.h"

#include <cstring>

#include "base/check.h"
#include "kernels/dtype.h"

namespace latentd {
namespace {

// up[head] latent + bias[head]; without factors the stored row is the row.
std::vector<double> Rebuild(const std::vector<float>& stored, const float* up, const float* bias,
                            int head_dim) {
  if (up == nullptr) return std::vector<double>(stored.begin(), stored.begin() + head_dim);
  const int64_t dims = static_cast<int64_t>(stored.size());
  std::vector<double> row(head_dim);
  for (int i = 0; i < head_dim; ++i) {
    double sum = bias == nullptr ? 0.0 : bias[i];
    for (int64_t d = 0; d < dims; ++d) sum += static_cast<double>(up[i * dims + d]) * stored[d];
    row[i] = sum;
  }
  return row;
}

void Rotate(const RopeTable& table, int64_t position, std::vector<double>& row) {
  LATENTD_CHECK(position < table.max_positions);
  for (int j = 0; j < table.pairs; ++j) {
    const double cos = table.cos[position * table.pairs + j];
    const double sin = table.sin[position * table.pairs + j];
    const double x = row[j], y = row[j + table.pairs];
    row[j] = x * cos - y * sin;
    row[j + table.pairs] = y * cos + x * sin;
  }
}

}  // namespace

std::vector<double> CachedRowReader::PlainKey(const uint8_t* block, int token, int kv_head) const {
  const int latent_head = kv_head / (plan_.spec().num_kv_heads / layer_.k.latent_heads);
  return Row(layer_.k, block + layer_.k_offset(0, latent_head), token, kv_head, plan_.k_up(),
             plan_.k_bias());
}

std::vector<double> CachedRowReader::Key(const uint8_t* block, int64_t position,
                                         int kv_head) const {
  const int token = static_cast<int>(position % kBlockTokens);
  std::vector<double> key = PlainKey(block, token, kv_head);
  if (!plan_.k_norm().empty()) {
    uint16_t inverse_norm;
    std::memcpy(&inverse_norm, block + layer_.key_norm_offset(kv_head) + 2 * token, 2);
    for (size_t i = 0; i < key.size(); ++i) key[i] *= HalfToFloat(inverse_norm) * plan_.k_norm()[i];
  }
  if (plan_.spec().path == AttentionPath::kReconstruct) Rotate(*plan_.spec().rope, position, key);
  return key;
}

std::vector<double> CachedRowReader::Value(const uint8_t* block, int64_t position,
                                           int kv_head) const {
  const int latent_head = kv_head / (plan_.spec().num_kv_heads / layer_.v.latent_heads);
  return Row(layer_.v, block + layer_.v_offset(0, latent_head),
             static_cast<int>(position % kBlockTokens), kv_head, plan_.v_up(), plan_.v_bias());
}

std::vector<double> CachedRowReader::Row(const CachePlane& plane, const uint8_t* head, int token,
                                         int kv_head, const std::vector<float>& up,
                                         const std::vector<float>& bias) const {
  const int head_dim = plan_.spec().head_dim;
  const int64_t first_row = int64_t{kv_head} * head_dim;  // factors of all heads are contiguous
  std::vector<float> stored(plane.dims());
  ReadCacheRow(plane, head, token, absl::MakeSpan(stored));
  return Rebuild(stored, up.empty() ? nullptr : up.data() + first_row * plane.dims(),
                 bias.empty() ? nullptr : bias.data() + first_row, head_dim);
}

}  // namespace latentd
