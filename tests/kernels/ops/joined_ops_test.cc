#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "tests/testing/device_values.h"
#include "tests/testing/random_values.h"
#include "tests/testing/random_weight.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

// Products with a norm before them and an activation after.
struct Joined {
  int64_t rows = 1, k = 264;
  std::vector<int64_t> widths;  // of the products
  std::optional<NormKind> norm;
  std::optional<ActivationKind> activation;
  bool bias = false;        // of norm and products
  bool accumulate = false;  // onto what the outputs held
  bool gate_first = false;  // of two products
};

enum class Calls : uint8_t { kOne, kOneEach };

// What the activation gives, or all products without it, one behind the other.
std::vector<float> Outputs(Ops& ops, const Joined& c, Calls calls) {
  const auto in = ToDevice(ops, GaussianValues(c.rows * c.k, 1, 3.0f)),
             norm_weight = ToDevice(ops, GaussianValues(c.k, 2)),
             norm_bias = ToDevice(ops, GaussianValues(c.bias ? c.k : 0, 3)),
             normed = ToDevice(ops, std::vector<float>(c.rows * c.k, NAN));
  std::vector<std::unique_ptr<Weight>> weights;
  std::vector<DeviceArray<float>> biases, outs;
  std::vector<Product> products;
  for (const int64_t n : c.widths) {
    const uint64_t seed = 10 + 3 * products.size();
    const RandomWeight stored(DType::kBF16, n, c.k, seed);
    auto weight = ops.PrepareWeight(stored.view());
    EXPECT_TRUE(weight.ok()) << weight.status();
    weights.push_back(*std::move(weight));
    biases.push_back(ToDevice(ops, GaussianValues(c.bias ? n : 0, seed + 1)));
    const int64_t values = c.rows * n;
    outs.push_back(ToDevice(
        ops, c.accumulate ? GaussianValues(values, seed + 2) : std::vector<float>(values, NAN)));
    products.push_back({.weight = weights.back().get(),
                        .bias = biases.back().data(),
                        .out = outs.back().data(),
                        .out_stride = n,
                        .accumulate = c.accumulate});
  }
  MatmulParams p{.in = in.data(), .rows = c.rows, .k = c.k, .products = products};
  NormParams norm{.rows = c.rows,
                  .dims = static_cast<int>(c.k),
                  .in = in.data(),
                  .weight = norm_weight.data(),
                  .bias = norm_bias.data(),
                  .out = normed.data()};
  if (c.norm.has_value()) {
    norm.kind = *c.norm;
    norm.epsilon = 0.5f;
    p.in = normed.data();
    p.norm = &norm;
  }
  ActivationParams activation{.rows = c.rows, .dims = c.widths[0]};
  if (c.activation.has_value()) {
    const bool gated = *c.activation == ActivationKind::kSiluGated;
    activation.kind = *c.activation;
    activation.gate = outs[gated && !c.gate_first ? 1 : 0].data();
    activation.up = gated ? outs[c.gate_first ? 1 : 0].data() : nullptr;
    activation.out = outs[0].data();
    p.activation = &activation;
  }

  ops.BeginStep({});
  if (calls == Calls::kOne) {
    ops.Matmul(p);
  } else {
    p.norm = nullptr;
    p.activation = nullptr;
    if (c.norm.has_value()) ops.Norm(norm);
    ops.Matmul(p);
    if (c.activation.has_value()) ops.Activation(activation);
  }
  std::vector<float> all;
  for (size_t i = 0; i < (c.activation.has_value() ? 1 : outs.size()); ++i) {
    const std::vector<float> out = ToHost(ops, outs[i]);
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

std::vector<Joined> Cases() {
  std::vector<Joined> cases;
  for (int64_t rows : {1, 2, 3, 4, 5}) {
    for (NormKind norm : {NormKind::kRms, NormKind::kLayer}) {
      for (bool bias : {false, true}) {
        cases.push_back({.rows = rows, .widths = {30, 9, 2}, .norm = norm, .bias = bias});
        cases.push_back({.rows = rows,
                         .widths = {215, 215},
                         .norm = norm,
                         .activation = ActivationKind::kSiluGated,
                         .bias = bias,
                         .gate_first = !bias});
        cases.push_back({.rows = rows,
                         .widths = {121},
                         .norm = norm,
                         .activation = ActivationKind::kGeluTanh,
                         .bias = bias});
      }
    }
    cases.push_back({.rows = rows,
                     .k = 1544,
                     .widths = {7, 2, 3, 2, 9, 4},
                     .norm = NormKind::kRms,
                     .accumulate = true});
    cases.push_back({.rows = rows, .widths = {8, 8}, .activation = ActivationKind::kSiluGated});
  }
  // More columns than the warps of a GPU take at once.
  cases.push_back({.rows = 1, .widths = {9000}, .norm = NormKind::kRms});
  cases.push_back({.rows = 2, .widths = {5000, 5000}, .activation = ActivationKind::kSiluGated});
  return cases;
}

using JoinedOpsTest = OpsTest;

TEST_F(JoinedOpsTest, AreTheOpsOneAfterAnother) {
  const auto ops = NewOps(2);
  for (const Joined& c : Cases()) {
    SCOPED_TRACE(testing::Message() << c.rows << " rows, " << c.widths.size() << " products of k "
                                    << c.k << (c.bias ? ", biased" : ""));
    const std::vector<float> one = Outputs(*ops, c, Calls::kOne),
                             each = Outputs(*ops, c, Calls::kOneEach);
    ASSERT_EQ(one.size(), each.size());
    EXPECT_EQ(std::memcmp(one.data(), each.data(), one.size() * sizeof(float)), 0);
  }
}

// Without the law they may differ by rounding: of some inputs to the other neighbour in 16 bits.
TEST_F(JoinedOpsTest, AreNearTheOpsOneAfterAnotherWithoutTheLaw) {
  const absl::StatusOr<std::unique_ptr<Ops>> ops = CreateFastestOps(2);
  ASSERT_TRUE(ops.ok()) << ops.status();
  for (const Joined& c : Cases()) {
    SCOPED_TRACE(testing::Message() << c.rows << " rows, " << c.widths.size() << " products of k "
                                    << c.k << (c.bias ? ", biased" : ""));
    const std::vector<float> out = Outputs(**ops, c, Calls::kOne);
    const std::vector<float> want = Outputs(**ops, c, Calls::kOneEach);
    ASSERT_EQ(out.size(), want.size());
    double error = 0, norm = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      error += (out[i] - want[i]) * (out[i] - want[i]);
      norm += want[i] * want[i];
    }
    EXPECT_LE(std::sqrt(error), 5e-4 * std::sqrt(norm));
  }
}

}  // namespace
}  // namespace latentd
