#include "engine/evaluation/estimate.h"

#include <cmath>
#include <numeric>

namespace latentd {

Estimate MeanOf(absl::Span<const double> values) {
  const double n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {.mean = mean,
          .standard_error = values.size() > 1 ? std::sqrt(squares / (n - 1) / n) : 0.0,
          .count = static_cast<int>(values.size())};
}

Estimate AverageOf(absl::Span<const Estimate> estimates) {
  Estimate average;
  double variance = 0;
  for (const Estimate& estimate : estimates) {
    average.mean += estimate.mean;
    average.count += estimate.count;
    variance += estimate.standard_error * estimate.standard_error;
  }
  const double n = static_cast<double>(estimates.size());
  average.mean /= n;
  average.standard_error = std::sqrt(variance) / n;
  return average;
}

std::optional<Estimate> FieldMean(const ItemsFile& items, const ItemsFile* other,
                                  const std::string& task, absl::Span<const int> indices,
                                  const std::string& name) {
  const auto value = [&](const ItemsFile& file, int index) -> std::optional<double> {
    const nlohmann::ordered_json* item = file.Find({task, index});
    if (item == nullptr || !item->contains(name) || !(*item)[name].is_number()) return std::nullopt;
    return (*item)[name].get<double>();
  };
  std::vector<double> values;
  for (const int index : indices) {
    std::optional<double> mine = value(items, index);
    if (mine.has_value() && other != nullptr) {
      const std::optional<double> theirs = value(*other, index);
      mine = theirs.has_value() ? std::optional(*mine - *theirs) : std::nullopt;
    }
    if (mine.has_value()) values.push_back(*mine);
  }
  if (values.empty()) return std::nullopt;
  return MeanOf(values);
}

}  // namespace latentd
