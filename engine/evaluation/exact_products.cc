#include "engine/evaluation/exact_products.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace latentd {
namespace {

// Rows of these are read at every step; all other weights an engine packs for itself.
bool IsEmbedding(std::string_view name) {
  return name == "token_embedding" || name == "position_embedding";
}

// A checkpoint whose quantised tensors read as fp16. Used by one thread while a model is loaded.
class HalfCheckpoint final : public Checkpoint {
 public:
  explicit HalfCheckpoint(std::unique_ptr<Checkpoint> base) : base_(std::move(base)) {}

  const ModelConfig& config() const override { return base_->config(); }
  const TokenizerSource& tokenizer() const override { return base_->tokenizer(); }

  std::optional<TensorView> Find(std::string_view name) const override {
    std::optional<TensorView> view = base_->Find(name);
    if (!view.has_value() || !IsQuantized(view->dtype)) return view;
    std::vector<uint16_t>& halves = halves_[std::string(name)];
    if (halves.empty()) halves = HalvesOf(*view);
    view->dtype = DType::kF16;
    view->data = reinterpret_cast<const std::byte*>(halves.data());
    return view;
  }

  // Frees what an engine has packed for itself.
  void KeepEmbeddingsAlone() {
    std::erase_if(halves_, [](const auto& tensor) { return !IsEmbedding(tensor.first); });
  }

 private:
  static std::vector<uint16_t> HalvesOf(const TensorView& view) {
    std::vector<uint16_t> halves(view.rows * view.cols);
    std::vector<float> row(view.cols);
    for (int64_t r = 0; r < view.rows; ++r) {
      DequantizeRow(view, r, absl::MakeSpan(row));
      for (int64_t c = 0; c < view.cols; ++c) halves[r * view.cols + c] = FloatToHalf(row[c]);
    }
    return halves;
  }

  const std::unique_ptr<Checkpoint> base_;
  mutable std::map<std::string, std::vector<uint16_t>> halves_;
};

}  // namespace

void AddEvaluationModelFlags(CommandLine* flags, EvaluationModel* options) {
  AddModelFlags(flags, &options->model);
  flags->Add("exact-products", &options->exact_products,
             "fp16 weights and fp32 activations in place of quantised products, whose rounding "
             "hides small differences between caches; slower");
}

absl::Status CheckModelFlags(const EvaluationModel& options) {
  if (options.model.model.empty()) return OpenCheckpoint(options.model).status();
  RETURN_IF_ERROR(ValidateCache(options.model));
  return CreateOps(options.model).status();
}

absl::StatusOr<OpenedModel> OpenForEvaluation(const EvaluationModel& options, int num_sequences) {
  ASSIGN_OR_RETURN(OpenedModel opened, OpenModel(options.model, num_sequences));
  if (!options.exact_products) return opened;
  // The latents belong to the file's own weights, so it is opened as usual first.
  opened.engine.reset();
  auto half = std::make_unique<HalfCheckpoint>(std::move(opened.checkpoint));
  HalfCheckpoint& weights = *half;
  opened.checkpoint = std::move(half);
  ASSIGN_OR_RETURN(opened.engine,
                   CreateEngine(options.model, weights, opened.latents.get(), num_sequences));
  weights.KeepEmbeddingsAlone();
  return opened;
}

}  // namespace latentd
