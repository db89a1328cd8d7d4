#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/evaluation/exact_products.h"

namespace latentd {

// The flag --reference: what a cache is compared with.
//   full           the same model with its uncompressed cache
//   FILE.latents   the same model with these latents
//   MODEL          another model of the same vocabulary, with its uncompressed cache
inline constexpr char kReferenceHelp[] =
    "what to compare with: full (the same model's uncompressed cache), a .latents file of the same "
    "model, or another model";

// INVALID_ARGUMENT names the flags when the reference is the very cache that is measured.
absl::Status CheckReference(const std::string& reference, const EvaluationModel& model);

// Products are as `model` has them. INVALID_ARGUMENT names the flag to change.
absl::StatusOr<OpenedModel> OpenReference(const std::string& reference,
                                          const EvaluationModel& model, int num_sequences);

}  // namespace latentd
