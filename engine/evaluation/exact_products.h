#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/command_line.h"
#include "engine/open_model.h"

namespace latentd {

// A model opened for measuring. Products with quantised weights round their input to 8 bits, and so
// a small change of a cache turns many other roundings over: two caches differ by that noise at
// least, be they the same but for the last bit. With exact products every quantised weight matrix
// becomes the fp16 numbers that it stands for (rounded by 2^-12 of themselves at most) and
// activations stay fp32: what is measured is the cache alone.
struct EvaluationModel {
  ModelOptions model;
  bool exact_products = false;  // --exact-products
};

// The flags of the model and --exact-products.
void AddEvaluationModelFlags(CommandLine* flags, EvaluationModel* options);

// INVALID_ARGUMENT names the flag that is missing or wrong, before a model is opened.
absl::Status CheckModelFlags(const EvaluationModel& options);

// OpenModel, with exact products if asked for.
absl::StatusOr<OpenedModel> OpenForEvaluation(const EvaluationModel& options, int num_sequences);

}  // namespace latentd
