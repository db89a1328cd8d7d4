#include "engine/evaluation/reference.h"

#include "absl/strings/match.h"

namespace latentd {

absl::StatusOr<OpenedModel> OpenReference(const std::string& reference, const ModelOptions& model,
                                          int num_sequences) {
  ModelOptions options = model;
  options.latents.clear();
  options.cache_codec = "16";
  if (absl::EndsWith(reference, ".latents")) {
    options.latents = reference;
  } else if (reference != "full") {
    options.model = reference;
  }
  return OpenModel(options, num_sequences);
}

}  // namespace latentd
