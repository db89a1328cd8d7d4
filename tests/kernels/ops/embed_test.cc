#include <cmath>
#include <vector>

#include "tests/testing/device_values.h"
#include "tests/testing/random_weight.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

// A table of random values as Embed takes it: as it is stored where the device reads the host's
// memory, else in fp16.
class Table {
 public:
  Table(Ops& ops, DType dtype, int64_t rows, int64_t cols, uint64_t seed)
      : stored_(dtype, rows, cols, seed), host_(stored_.view()), device_(host_) {
    if (ops.device().reads_host_memory()) return;
    std::vector<float> row(cols);
    for (int64_t r = 0; r < rows; ++r) {
      DequantizeRow(stored_.view(), r, absl::MakeSpan(row));
      for (const float value : row) halves_.push_back(FloatToHalf(value));
    }
    copy_ = ToDevice(ops, halves_);
    const auto view = [&](const uint16_t* values) {
      return TensorView{.dtype = DType::kF16,
                        .rows = rows,
                        .cols = cols,
                        .data = reinterpret_cast<const std::byte*>(values)};
    };
    host_ = view(halves_.data());
    device_ = view(copy_.data());
  }
  const TensorView& host() const { return host_; }
  const TensorView& device() const { return device_; }

 private:
  const RandomWeight stored_;
  std::vector<uint16_t> halves_;
  DeviceArray<uint16_t> copy_;
  TensorView host_, device_;
};

std::vector<float> Embedded(Ops& ops, EmbedParams p) {
  const auto values = static_cast<int64_t>(p.token_ids.size()) * p.table.cols;
  const DeviceArray<float> out = ToDevice(ops, std::vector<float>(values, NAN));
  p.out = out.data();
  ops.BeginStep({.token_ids = p.token_ids, .positions = p.positions});
  ops.Embed(p);
  return ToHost(ops, out);
}

using EmbedTest = OpsTest;

TEST_F(EmbedTest, IsTheReference) {
  const auto reference = CreateReferenceOps();
  const auto ops = NewOps(2);
  for (DType dtype : kAllDTypes) {
    const Table table(*ops, dtype, 20, 256, 1), positions(*ops, DType::kF32, 30, 256, 2);
    std::vector<int32_t> ids, at;
    for (int t = 0; t < 18; ++t) {
      ids.push_back(t * 7 % 20);
      at.push_back(t * 11 % 30);
    }
    for (bool with_positions : {false, true}) {
      const auto params = [&](const TensorView& tokens, const TensorView& learned) {
        return EmbedParams{.token_ids = ids,
                           .positions = at,
                           .table = tokens,
                           .position_table = with_positions ? &learned : nullptr};
      };
      EXPECT_EQ(Embedded(*ops, params(table.device(), positions.device())),
                Embedded(*reference, params(table.host(), positions.host())))
          << Info(dtype).name;
    }
  }
}

}  // namespace
}  // namespace latentd
