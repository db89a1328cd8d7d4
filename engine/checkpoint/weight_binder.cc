#include "engine/checkpoint/weight_binder.h"

#include <cstring>
#include <utility>

#include "base/message.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

// Rows [begin, begin + rows) of a stored tensor of `total` rows; for a vector, values instead of
// rows.
struct RowRange {
  int64_t begin = 0;
  int64_t rows = 0;
  int64_t total = 0;
};

RowRange RangeOf(const WeightRule& rule, const ModelConfig& config) {
  const int64_t rows = ExtentOf(rule.rows == Extent::kOne ? rule.cols : rule.rows, config);
  const int64_t q = config.q_dim(), kv = config.kv_dim();
  switch (rule.slice) {
    case RowSlice::kAll:
      break;
    case RowSlice::kQuery:
      return {0, rows, q + 2 * kv};
    case RowSlice::kKey:
      return {q, rows, q + 2 * kv};
    case RowSlice::kValue:
      return {q + kv, rows, q + 2 * kv};
  }
  return {0, rows, rows};
}

class Binder {
 public:
  Binder(const Family& family, const ModelConfig& config, TensorFormat format,
         const StoredTensors& tensors)
      : family_(family), config_(config), format_(format), tensors_(tensors) {}

  absl::StatusOr<BoundWeights> BindAll() {
    for (const WeightRule& rule : family_.weights) {
      if (rule.presence == Presence::kUntied && config_.tied_embeddings) continue;
      const int copies = rule.per_layer() ? config_.num_layers : 1;
      int found = 0;
      for (int layer = 0; layer < copies; ++layer) {
        const StoredTensors::value_type* stored = FindStored(rule, layer);
        if (stored != nullptr && found == layer) {
          ++found;
          RETURN_IF_ERROR(Bind(rule, layer, stored->first, stored->second));
        } else if (stored != nullptr || found > 0 || rule.presence != Presence::kOptional) {
          return absl::InvalidArgumentError(
              Message("the tensor ", FileName(rule, stored == nullptr ? layer : 0), " is missing"));
        }
      }
    }
    return std::move(bound_);
  }

 private:
  std::string FileName(const WeightRule& rule, int layer) const {
    return WithLayer(format_ == TensorFormat::kGguf ? rule.gguf : rule.hf, layer);
  }

  const StoredTensors::value_type* FindStored(const WeightRule& rule, int layer) const {
    const std::string name = FileName(rule, layer);
    auto it = tensors_.end();
    if (format_ == TensorFormat::kHuggingFace) {
      it = tensors_.find(Message(family_.hf_prefix, name));
    }
    if (it == tensors_.end()) it = tensors_.find(name);
    return it == tensors_.end() ? nullptr : &*it;
  }

  absl::Status Bind(const WeightRule& rule, int layer, const std::string& name,
                    const StoredTensor& stored) {
    if (!stored.dtype.has_value()) {
      return absl::UnimplementedError(Message("the tensor ", name, " has type ", stored.type,
                                              ", which is not supported for weights"));
    }
    const DType dtype = *stored.dtype;
    const bool is_vector = rule.rows == Extent::kOne;
    const bool transposed = rule.hf_transposed && format_ == TensorFormat::kHuggingFace;
    const RowRange range = RangeOf(rule, config_);
    const int64_t cols = is_vector ? 1 : ExtentOf(rule.cols, config_);
    std::vector<int64_t> wanted = {range.total};
    if (!is_vector) wanted.insert(transposed ? wanted.begin() : wanted.end(), cols);
    if (stored.shape != wanted) {
      return absl::InvalidArgumentError(Message("the tensor ", name, " has shape ",
                                                ShapeText(stored.shape), ", the config wants ",
                                                ShapeText(wanted)));
    }
    if ((is_vector || transposed) && IsQuantized(dtype)) {
      return absl::InvalidArgumentError(Message("the tensor ", name, " has type ", stored.type,
                                                ", only F32, F16 and BF16 fit its kind"));
    }

    // From here on a vector is a matrix of one column: its values move like rows.
    const std::byte* data = stored.data.data();
    const int64_t unit = RowBytes(dtype, cols);
    const int heads = rule.rotary == RotaryRows::kNone    ? 0
                      : rule.rotary == RotaryRows::kQuery ? config_.num_heads
                                                          : config_.num_kv_heads;
    if (rule.hf_fused_by_head && format_ == TensorFormat::kHuggingFace) {
      data = GatherHeads(data, unit, rule.slice);
    } else if (transposed) {
      data = Transpose(data, RowBytes(dtype, 1), range, cols);
    } else {
      data += range.begin * unit;
      const size_t alignment = dtype == DType::kF32 ? 4 : 2;
      if (family_.gguf_interleaved_rope && format_ == TensorFormat::kGguf && heads > 0) {
        data = Uninterleave(data, unit, range.rows / heads, heads);
      } else if (reinterpret_cast<uintptr_t>(data) % alignment != 0) {
        std::byte* copy = Own(range.rows * unit);
        std::memcpy(copy, data, range.rows * unit);
        data = copy;
      }
    }
    const TensorView view = {.dtype = dtype,
                             .rows = is_vector ? 1 : range.rows,
                             .cols = is_vector ? range.rows : cols,
                             .data = data};
    bound_.views.emplace(WithLayer(rule.name, layer), view);
    return absl::OkStatus();
  }

  std::byte* Own(int64_t bytes) {
    const std::shared_ptr<std::byte[]> memory(new std::byte[bytes]);
    bound_.owned.push_back(memory);
    return memory.get();
  }

  // [cols, total] -> rows of the range, each with `cols` values of `size` bytes.
  const std::byte* Transpose(const std::byte* in, int64_t size, const RowRange& range,
                             int64_t cols) {
    std::byte* out = Own(range.rows * cols * size);
    constexpr int64_t kTile = 32;  // both sides of a tile stay in cache
    for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
      for (int64_t r = 0; r < range.rows; ++r) {
        for (int64_t c = c0; c < std::min(cols, c0 + kTile); ++c) {
          std::memcpy(out + (r * cols + c) * size, in + (c * range.total + range.begin + r) * size,
                      size);
        }
      }
    }
    return out;
  }

  // The rows of q, k or v of all heads from [heads][q, k, v][head_dim].
  const std::byte* GatherHeads(const std::byte* in, int64_t unit, RowSlice slice) {
    const int64_t part = slice == RowSlice::kQuery ? 0 : slice == RowSlice::kKey ? 1 : 2;
    const int64_t head_bytes = config_.head_dim * unit;
    std::byte* out = Own(config_.num_heads * head_bytes);
    for (int64_t h = 0; h < config_.num_heads; ++h) {
      std::memcpy(out + h * head_bytes, in + (3 * h + part) * head_bytes, head_bytes);
    }
    return out;
  }

  // Rows of every head from pairs (2j, 2j + 1) to pairs (j, j + head_dim / 2).
  const std::byte* Uninterleave(const std::byte* in, int64_t unit, int64_t head_dim, int heads) {
    std::byte* out = Own(heads * head_dim * unit);
    const int64_t pairs = head_dim / 2;
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t j = 0; j < pairs; ++j) {
        for (int64_t side = 0; side < 2; ++side) {
          std::memcpy(out + (h * head_dim + side * pairs + j) * unit,
                      in + (h * head_dim + 2 * j + side) * unit, unit);
        }
      }
    }
    return out;
  }

  const Family& family_;
  const ModelConfig& config_;
  const TensorFormat format_;
  const StoredTensors& tensors_;
  BoundWeights bound_;
};

}  // namespace

absl::StatusOr<BoundWeights> BindWeights(const Family& family, const ModelConfig& config,
                                         TensorFormat format, const StoredTensors& tensors) {
  return Binder(family, config, format, tensors).BindAll();
}

}  // namespace latentd
