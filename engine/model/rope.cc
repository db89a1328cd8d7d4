#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "engine/model/model_config.h"

namespace latentd {
namespace {

using Scaling = RopeConfig::Scaling;

// Su et al. 2021: theta^(-2j / dims).
std::vector<double> PlainFrequencies(double theta, int dims) {
  std::vector<double> inv_freq(dims / 2);
  for (int j = 0; j < dims / 2; ++j) inv_freq[j] = std::pow(theta, -2.0 * j / dims);
  return inv_freq;
}

// YaRN (Peng et al. 2023), section 3.2: the pair index whose wavelength fits `rotations` times into
// the original context.
double CorrectionDim(const RopeConfig& config, double rotations) {
  return config.dims *
         std::log(config.original_max_positions / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(static_cast<double>(config.theta)));
}

// YaRN: high frequencies stay, low ones are interpolated, a linear ramp over the pair index
// between.
void ScaleYarn(const RopeConfig& config, std::vector<double>& inv_freq) {
  double low = CorrectionDim(config, config.beta_fast);
  double high = CorrectionDim(config, config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, config.dims - 1.0);
  if (low == high) high += 0.001;
  for (size_t j = 0; j < inv_freq.size(); ++j) {
    const double interpolated = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    inv_freq[j] *= interpolated / config.factor + (1 - interpolated);
  }
}

double YarnScale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double YarnAttentionFactor(const RopeConfig& config) {
  if (config.attention_factor > 0) return config.attention_factor;
  if (config.mscale > 0 && config.mscale_all_dim > 0) {
    return YarnScale(config.factor, config.mscale) /
           YarnScale(config.factor, config.mscale_all_dim);
  }
  return YarnScale(config.factor, 1.0);
}

// Llama 3.1: wavelengths beyond the original context are stretched, short ones stay, a ramp over 1
// / wavelength between.
void ScaleLlama3(const RopeConfig& config, std::vector<double>& inv_freq) {
  for (double& frequency : inv_freq) {
    const double rotations = config.original_max_positions * frequency / (2 * std::numbers::pi);
    const double kept =
        std::clamp((rotations - config.low_freq_factor) /
                       (static_cast<double>(config.high_freq_factor) - config.low_freq_factor),
                   0.0, 1.0);
    frequency *= kept + (1 - kept) / config.factor;
  }
}

double LongRopeAttentionFactor(const RopeConfig& config) {
  if (config.attention_factor > 0) return config.attention_factor;
  if (config.factor <= 1) return 1.0;
  return std::sqrt(1 + std::log(static_cast<double>(config.factor)) /
                           std::log(static_cast<double>(config.original_max_positions)));
}

}  // namespace

RopeFrequencies ComputeRopeFrequencies(const RopeConfig& config, int max_context) {
  double theta = config.theta;
  if (config.scaling == Scaling::kDynamicNtk && max_context > config.original_max_positions) {
    const double stretch =
        static_cast<double>(config.factor) * max_context / config.original_max_positions -
        (config.factor - 1.0);
    theta *= std::pow(stretch, config.dims / (config.dims - 2.0));
  }
  RopeFrequencies result{.inv_freq = PlainFrequencies(theta, config.dims)};
  double attention_factor = 1.0;
  switch (config.scaling) {
    case Scaling::kNone:
    case Scaling::kDynamicNtk:
      break;
    case Scaling::kLinear:
      for (double& frequency : result.inv_freq) frequency /= config.factor;
      break;
    case Scaling::kYarn:
      ScaleYarn(config, result.inv_freq);
      attention_factor = YarnAttentionFactor(config);
      break;
    case Scaling::kLlama3:
      ScaleLlama3(config, result.inv_freq);
      break;
    case Scaling::kLongRope: {
      const std::vector<float>& factors =
          max_context > config.original_max_positions ? config.long_factors : config.short_factors;
      LATENTD_CHECK(factors.size() == result.inv_freq.size());
      for (size_t j = 0; j < factors.size(); ++j) result.inv_freq[j] /= factors[j];
      attention_factor = LongRopeAttentionFactor(config);
      break;
    }
  }
  result.score_factor = static_cast<float>(attention_factor * attention_factor);
  return result;
}

RopeTable BuildRopeTable(const RopeFrequencies& frequencies, int max_positions) {
  const size_t pairs = frequencies.inv_freq.size();
  RopeTable table{.pairs = static_cast<int>(pairs), .max_positions = max_positions};
  table.cos.resize(pairs * max_positions);
  table.sin.resize(pairs * max_positions);
  for (int position = 0; position < max_positions; ++position) {
    for (size_t j = 0; j < pairs; ++j) {
      const double angle = position * frequencies.inv_freq[j];
      table.cos[position * pairs + j] = static_cast<float>(std::cos(angle));
      table.sin[position * pairs + j] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

}  // namespace latentd
