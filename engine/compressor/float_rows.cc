#include "engine/compressor/float_rows.h"

#include <bit>
#include <cmath>
#include <numbers>

// Plain loops, compiled once for each kind of vectors. Nothing is contracted or reordered, so all
// give the same bits.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compressor/float_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

// e^x = 2^k e^r, r in [-ln 2 / 2, ln 2 / 2]: a Taylor polynomial of degree 6.
inline float Exp(float x) {
  const float clamped = x < -87.3f ? -87.3f : (x > 88.0f ? 88.0f : x);
  constexpr float kRound = 0x1.8p23f;  // adding it rounds to a whole number
  const float shifted = clamped * std::numbers::log2e_v<float> + kRound;
  const float k = shifted - kRound;
  const float r = (clamped - k * 0.693359375f) + k * 2.12194440e-4f;  // ln 2 in two parts
  float p = 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) << 23;
  const float power = std::bit_cast<float>(exponent + 0x3f800000u);
  return x < -87.3f ? 0.0f : p * power;
}

inline float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }

// sqrt(2 / pi) (x + 0.044715 x^3) and its derivative.
constexpr float kGeluScale = 0.7978845608f, kGeluCube = 0.044715f;
inline float GeluArgument(float x) { return kGeluScale * (x + kGeluCube * x * x * x); }

void Exponentials(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = Exp(x[i]);
}

void Activation(ActivationKind kind, const float* gate, const float* up, int64_t n, float* out) {
  switch (kind) {
    case ActivationKind::kSiluGated:
      for (int64_t i = 0; i < n; ++i) out[i] = gate[i] * Sigmoid(gate[i]) * up[i];
      return;
    case ActivationKind::kGeluTanh:  // (1 + tanh(u)) / 2 = sigmoid(2 u)
      for (int64_t i = 0; i < n; ++i) out[i] = gate[i] * Sigmoid(2.0f * GeluArgument(gate[i]));
      return;
  }
}

void ActivationGradient(ActivationKind kind, const float* dout, int64_t n, float* gate, float* up) {
  switch (kind) {
    case ActivationKind::kSiluGated:
      for (int64_t i = 0; i < n; ++i) {
        const float g = gate[i], s = Sigmoid(g);
        gate[i] = dout[i] * up[i] * s * (1.0f + g * (1.0f - s));
        up[i] = dout[i] * g * s;
      }
      return;
    case ActivationKind::kGeluTanh:
      for (int64_t i = 0; i < n; ++i) {
        const float g = gate[i], s = Sigmoid(2.0f * GeluArgument(g));
        const float slope = 2.0f * kGeluScale * (1.0f + 3.0f * kGeluCube * g * g);
        gate[i] = dout[i] * (s + g * s * (1.0f - s) * slope);
      }
      return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace latentd {
namespace {

// Independent partial results, as many as the widest vectors hold: the compiler may not reorder
// floating-point sums by itself.
constexpr int kLanes = 16;

// The row's mean (0 for kRms) and 1 / sqrt(mean square + epsilon) of the rest.
struct RowFacts {
  float mean, inverse;
};

RowFacts FactsOf(const RowNorm& norm, const float* x) {
  double sum = 0, square = 0;
  if (norm.kind == NormKind::kLayer) {
    for (int64_t i = 0; i < norm.dims; ++i) sum += x[i];
  }
  const double mean = sum / norm.dims;
  for (int64_t i = 0; i < norm.dims; ++i) square += (x[i] - mean) * (x[i] - mean);
  return {.mean = static_cast<float>(mean),
          .inverse = static_cast<float>(1 / std::sqrt(square / norm.dims + norm.epsilon))};
}

}  // namespace

HWY_EXPORT(Exponentials);
HWY_EXPORT(Activation);
HWY_EXPORT(ActivationGradient);

void ExpInPlace(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Exponentials)(x, n); }

void Activate(ActivationKind kind, const float* gate, const float* up, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(Activation)(kind, gate, up, n, out);
}

void ActivateBackward(ActivationKind kind, const float* dout, int64_t n, float* gate, float* up) {
  HWY_DYNAMIC_DISPATCH(ActivationGradient)(kind, dout, n, gate, up);
}

float Largest(const float* x, int64_t n) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = x[0];
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
  }
  for (; i < n; ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  for (const float lane : lanes) lanes[0] = lane > lanes[0] ? lane : lanes[0];
  return lanes[0];
}

float Sum(const float* x, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += x[i + j];
  }
  float sum = 0;
  for (; i < n; ++i) sum += x[i];
  for (const float lane : lanes) sum += lane;
  return sum;
}

float Dot(const float* a, const float* b, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += a[i + j] * b[i + j];
  }
  float sum = 0;
  for (; i < n; ++i) sum += a[i] * b[i];
  for (const float lane : lanes) sum += lane;
  return sum;
}

void NormRows(const RowNorm& norm, const float* in, int64_t rows, float* out) {
  for (int64_t r = 0; r < rows; ++r, in += norm.dims, out += norm.dims) {
    const RowFacts facts = FactsOf(norm, in);
    for (int64_t i = 0; i < norm.dims; ++i) {
      const float value = (in[i] - facts.mean) * facts.inverse * norm.weight[i];
      out[i] = norm.bias != nullptr ? value + norm.bias[i] : value;
    }
  }
}

// With n = (x - mean) inverse and dn = dout weight: dx = inverse (dn - mean(dn) - n mean(n dn)),
// where kRms has no mean(dn).
void NormRowsBackward(const RowNorm& norm, const float* in, const float* dout, int64_t rows,
                      bool accumulate, float* dx) {
  for (int64_t r = 0; r < rows; ++r, in += norm.dims, dout += norm.dims, dx += norm.dims) {
    const RowFacts facts = FactsOf(norm, in);
    double sum = 0, product = 0;
    for (int64_t i = 0; i < norm.dims; ++i) {
      const float dn = dout[i] * norm.weight[i];
      sum += dn;
      product += dn * ((in[i] - facts.mean) * facts.inverse);
    }
    const float mean = norm.kind == NormKind::kLayer ? static_cast<float>(sum / norm.dims) : 0.0f;
    const float along = static_cast<float>(product / norm.dims);
    for (int64_t i = 0; i < norm.dims; ++i) {
      const float n = (in[i] - facts.mean) * facts.inverse;
      const float value = facts.inverse * (dout[i] * norm.weight[i] - mean - n * along);
      dx[i] = accumulate ? dx[i] + value : value;
    }
  }
}

void RotateRows(const RopeTable& table, int64_t first, int64_t rows, int heads, int head_dim,
                bool inverse, float* x) {
  const int pairs = table.pairs;
  const float sign = inverse ? -1.0f : 1.0f;
  for (int64_t t = first; t < first + rows; ++t) {
    const float* cos = table.cos.data() + t * pairs;
    const float* sin = table.sin.data() + t * pairs;
    for (int h = 0; h < heads; ++h) {
      float* low = x + (t * heads + h) * head_dim;
      float* high = low + pairs;
      for (int j = 0; j < pairs; ++j) {
        const float a = low[j], b = high[j], s = sign * sin[j];
        low[j] = a * cos[j] - b * s;
        high[j] = b * cos[j] + a * s;
      }
    }
  }
}

}  // namespace latentd
#endif  // HWY_ONCE
