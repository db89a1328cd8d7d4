#include "engine/evaluation/reference.h"

#include "absl/strings/match.h"

namespace latentd {

absl::StatusOr<OpenedModel> OpenReference(const std::string& reference,
                                          const EvaluationModel& model, int num_sequences) {
  EvaluationModel options = model;
  options.model.latents.clear();
  options.model.cache_codec = "16";
  if (absl::EndsWith(reference, ".latents")) {
    options.model.latents = reference;
  } else if (reference != "full") {
    options.model.model = reference;
  }
  return OpenForEvaluation(options, num_sequences);
}

}  // namespace latentd
