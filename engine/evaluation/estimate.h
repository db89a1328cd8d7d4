#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "engine/evaluation/items_file.h"

namespace latentd {

// A mean and its standard error: the standard deviation (n - 1) over sqrt(n), as
// lm-evaluation-harness states it; 0 for a single value.
struct Estimate {
  double mean = 0;
  double standard_error = 0;
  int count = 0;
};

Estimate MeanOf(absl::Span<const double> values);

// Of the mean over independent estimates, each of the same weight.
Estimate AverageOf(absl::Span<const Estimate> estimates);

// The field `name` of those of a task's items `indices` that both files have (`other` may be null),
// less the other's: the mean of paired differences, whose standard error is smaller than that of
// two means apart. nullopt when no item has the field.
std::optional<Estimate> FieldMean(const ItemsFile& items, const ItemsFile* other,
                                  const std::string& task, absl::Span<const int> indices,
                                  const std::string& name);

}  // namespace latentd
