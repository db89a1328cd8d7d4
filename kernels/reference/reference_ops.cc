#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/ops.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/sampling.h"

namespace latentd {
namespace {

class ReferenceWeight final : public Weight {
 public:
  explicit ReferenceWeight(const TensorView& view) : Weight(view), view_(view) {}
  int64_t bytes() const override { return view_.bytes(); }
  const TensorView& view() const { return view_; }

 private:
  const TensorView view_;
};

void NormRow(const NormParams& p, const float* in, float* out) {
  double mean = 0, squares = 0;
  for (int i = 0; i < p.dims; ++i) mean += in[i];
  mean = p.kind == NormKind::kLayer ? mean / p.dims : 0.0;
  for (int i = 0; i < p.dims; ++i) squares += (in[i] - mean) * (in[i] - mean);
  const double inverse = 1.0 / std::sqrt(squares / p.dims + p.epsilon);
  for (int i = 0; i < p.dims; ++i) {
    const double bias = p.bias == nullptr ? 0.0 : p.bias[i];
    out[i] = static_cast<float>((in[i] - mean) * inverse * p.weight[i] + bias);
  }
}

void Multiply(const float* in, int64_t rows, int64_t k, const Product& product) {
  const TensorView& view = static_cast<const ReferenceWeight*>(product.weight)->view();
  LATENTD_CHECK(view.cols == k && product.out_stride >= view.rows);
  std::vector<float> weights(k);
  for (int64_t n = 0; n < view.rows; ++n) {
    DequantizeRow(view, n, absl::MakeSpan(weights));
    for (int64_t t = 0; t < rows; ++t) {
      double sum = product.bias == nullptr ? 0.0 : product.bias[n];
      for (int64_t i = 0; i < k; ++i) sum += static_cast<double>(in[t * k + i]) * weights[i];
      float& out = product.out[t * product.out_stride + n];
      out = static_cast<float>(product.accumulate ? out + sum : sum);
    }
  }
}

float Silu(float x) { return static_cast<float>(x / (1.0 + std::exp(-static_cast<double>(x)))); }

// The tanh form of GELU (Hendrycks and Gimpel 2016).
float GeluTanh(float x) {
  const double v = x;
  const double inner = 0.7978845608028654 * (v + 0.044715 * v * v * v);  // sqrt(2 / pi)
  return static_cast<float>(0.5 * v * (1.0 + std::tanh(inner)));
}

class ReferenceOps final : public Ops {
 public:
  std::string_view name() const override { return "reference"; }
  Device& device() override { return *device_; }

  absl::StatusOr<std::unique_ptr<Weight>> PrepareWeight(const TensorView& view) override {
    if (view.data == nullptr || view.rows <= 0 || view.cols <= 0 ||
        view.cols % Info(view.dtype).block_size != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "weight of ", view.rows, " x ", view.cols, " values",
          view.data == nullptr ? " without data" : "", ": both must be at least 1, and columns of ",
          Info(view.dtype).name, " a multiple of ", Info(view.dtype).block_size));
    }
    return std::make_unique<ReferenceWeight>(view);
  }

  absl::StatusOr<std::unique_ptr<AttentionPlan>> PrepareAttention(
      const AttentionSpec& spec) override {
    RETURN_IF_ERROR(ValidateAttention(spec));
    return std::make_unique<ReferenceAttentionPlan>(spec);
  }

  void BeginStep(const StepInputs&) override {}

  void Embed(const EmbedParams& p) override {
    const int64_t hidden = p.table.cols;
    std::vector<float> position(hidden, 0.0f);
    for (size_t t = 0; t < p.token_ids.size(); ++t) {
      const absl::Span<float> out(p.out + t * hidden, hidden);
      DequantizeRow(p.table, p.token_ids[t], out);
      if (p.position_table == nullptr) continue;
      DequantizeRow(*p.position_table, p.positions[t], absl::MakeSpan(position));
      for (int64_t i = 0; i < hidden; ++i) out[i] += position[i];
    }
  }

  void Norm(const NormParams& p) override {
    for (int64_t r = 0; r < p.rows; ++r) NormRow(p, p.in + r * p.dims, p.out + r * p.dims);
  }

  void Matmul(const MatmulParams& p) override {
    if (p.norm != nullptr) Norm(*p.norm);
    for (const Product& product : p.products) Multiply(p.in, p.rows, p.k, product);
    if (p.activation != nullptr) Activation(*p.activation);
  }

  void Rope(const RopeParams& p) override {
    const int pairs = p.table->pairs;
    LATENTD_CHECK(2 * pairs <= p.head_dim);
    for (size_t t = 0; t < p.positions.size(); ++t) {
      LATENTD_CHECK(p.positions[t] >= 0 && p.positions[t] < p.table->max_positions);
      const float* cos = p.table->cos.data() + int64_t{p.positions[t]} * pairs;
      const float* sin = p.table->sin.data() + int64_t{p.positions[t]} * pairs;
      for (int h = 0; h < p.heads; ++h) {
        float* x = p.x + (t * p.heads + h) * p.head_dim;
        for (int j = 0; j < pairs; ++j) {
          const float a = x[j], b = x[j + pairs];
          x[j] = a * cos[j] - b * sin[j];
          x[j + pairs] = b * cos[j] + a * sin[j];
        }
      }
    }
  }

  void Activation(const ActivationParams& p) override {
    for (int64_t i = 0; i < p.rows * p.dims; ++i) {
      p.out[i] =
          p.kind == ActivationKind::kSiluGated ? Silu(p.gate[i]) * p.up[i] : GeluTanh(p.gate[i]);
    }
  }

  void Gather(const GatherParams& p) override {
    for (size_t n = 0; n < p.rows.size(); ++n) {
      std::copy_n(p.in + p.rows[n] * p.dims, p.dims, p.out + n * p.dims);
    }
  }

  void AppendCache(const AppendCacheParams& p) override { ReferenceAppendCache(p); }
  void Attention(const AttentionParams& p) override { ReferenceAttention(p); }

  void LogProbability(const LogProbabilityParams& p) override {
    LATENTD_CHECK(p.token_ids.size() == p.results.size());
    for (size_t n = 0; n < p.token_ids.size(); ++n) {
      p.results[n] = ReferenceLogProbability(p.logits + n * p.vocab, p.vocab, p.token_ids[n]);
    }
  }

  void Sample(const SampleParams& p) override {
    LATENTD_CHECK(p.rows.size() == p.results.size());
    for (size_t l = 0; l < p.rows.size(); ++l) {
      p.results[l] = ReferenceSampleRow(p.logits + l * p.vocab, p.vocab, p.rows[l]);
    }
  }

 private:
  const std::unique_ptr<Device> device_ = CreateHostDevice();
};

}  // namespace

std::unique_ptr<Ops> CreateReferenceOps() { return std::make_unique<ReferenceOps>(); }

}  // namespace latentd
