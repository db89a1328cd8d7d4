#include "engine/evaluation/reference.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace latentd {
namespace {

EvaluationModel ModelOf(const std::string& reference, const EvaluationModel& model) {
  EvaluationModel options = model;
  options.model.latents.clear();
  options.model.cache_codec = "16";
  options.model.dummy_latents.clear();
  if (absl::EndsWith(reference, ".latents")) {
    options.model.latents = reference;
  } else if (reference != "full") {
    options.model.model = reference;
  }
  return options;
}

}  // namespace

absl::Status CheckReference(const std::string& reference, const EvaluationModel& model) {
  const ModelOptions& measured = model.model;
  const ModelOptions other = ModelOf(reference, model).model;
  if (other.model != measured.model || other.latents != measured.latents ||
      other.cache_codec != measured.cache_codec || other.dummy_latents != measured.dummy_latents) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--reference is \"", reference, "\", --latents is \"", measured.latents,
                   "\" and --cache-codec is ", measured.cache_codec,
                   ": that compares a cache with itself, give another"));
}

absl::StatusOr<OpenedModel> OpenReference(const std::string& reference,
                                          const EvaluationModel& model, int num_sequences) {
  return OpenForEvaluation(ModelOf(reference, model), num_sequences);
}

}  // namespace latentd
