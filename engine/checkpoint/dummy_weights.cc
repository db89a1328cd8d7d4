#include "engine/checkpoint/dummy_weights.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "engine/checkpoint/dummy_numbers.h"

namespace latentd {
namespace {

constexpr uint16_t kOne = 0x3f80;  // in bf16

bool IsThere(const WeightRule& rule, const ModelConfig& config) {
  if (rule.presence == Presence::kUntied) return !config.tied_embeddings;
  if (rule.presence == Presence::kAlways) return true;
  constexpr std::string_view kOfAttention[] = {"layers.N.q.bias", "layers.N.k.bias",
                                               "layers.N.v.bias", "layers.N.o.bias"};
  return config.qkv_bias && std::ranges::find(kOfAttention, rule.name) != std::end(kOfAttention);
}

// A vector is one row.
int64_t RowsOf(const WeightRule& rule, const ModelConfig& config) {
  return rule.rows == Extent::kOne ? 1 : ExtentOf(rule.rows, config);
}

struct DummyStorage {
  std::vector<uint16_t> ones;
  DummyNumbers numbers;
};

}  // namespace

absl::StatusOr<BoundWeights> DummyWeights(const Family& family, const ModelConfig& config,
                                          uint64_t seed) {
  const auto size_of = [&](const WeightRule& rule) {
    return RowsOf(rule, config) * ExtentOf(rule.cols, config);
  };
  const WeightRule& largest = *std::ranges::max_element(family.weights, {}, size_of);
  int64_t longest = 0;
  for (const WeightRule& rule : family.weights) {
    longest = std::max(longest, ExtentOf(rule.cols, config));
  }
  absl::StatusOr<DummyNumbers> numbers = DummyNumbers::Create(size_of(largest), seed);
  if (!numbers.ok()) {
    return absl::Status(numbers.status().code(),
                        Message("the weight ", largest.name, ", ", RowsOf(largest, config), " x ",
                                ExtentOf(largest.cols, config), ": ", numbers.status().message()));
  }
  auto storage = std::make_shared<const DummyStorage>(
      DummyStorage{.ones = std::vector<uint16_t>(longest, kOne), .numbers = *std::move(numbers)});
  BoundWeights bound;
  for (const WeightRule& rule : family.weights) {
    if (!IsThere(rule, config)) continue;
    const int64_t rows = RowsOf(rule, config), cols = ExtentOf(rule.cols, config);
    const bool is_norm = rule.rows == Extent::kOne && rule.name.ends_with(".weight");
    for (int layer = 0; layer < (rule.per_layer() ? config.num_layers : 1); ++layer) {
      TensorView view{.dtype = DType::kBF16, .rows = rows, .cols = cols};
      view.data = reinterpret_cast<const std::byte*>(storage->ones.data());
      if (!is_norm) view = storage->numbers.Matrix(rows, cols, bound.views.size());
      bound.views.emplace(WithLayer(rule.name, layer), view);
    }
  }
  bound.owned.push_back(std::move(storage));
  return bound;
}

TokenizerSource DummyTokenizer() {
  constexpr int kByte = 6, kNormal = 1;  // token types of GgufVocabulary
  GgufVocabulary vocabulary{.model = "llama", .add_bos = false, .add_space_prefix = false};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.push_back(absl::StrFormat("<0x%02X>", byte));
  }
  vocabulary.token_types.assign(vocabulary.tokens.size(), kByte);
  vocabulary.tokens.emplace_back("\u2581");  // a space, in this kind of vocabulary
  vocabulary.token_types.push_back(kNormal);
  vocabulary.scores.assign(vocabulary.tokens.size(), 0.0f);
  return {.gguf = std::move(vocabulary)};
}

}  // namespace latentd
