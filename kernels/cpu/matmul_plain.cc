// Products with weights that are not quantised, in fp32. One token is bound by reading the weight;
// from about 4 rows on the fused multiply-adds bound it.

#include "base/check.h"
#include "kernels/cpu/matmul_panel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul_plain.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kPanelRows>;
using VF = hn::Vec<DF>;
constexpr int kLanes = hn::MaxLanes(DF());
constexpr int kChains = 4;  // hide the latency of the multiply-adds; chain c sums over k mod 4 = c

// Input rows that share a loaded weight: as many as the registers hold.
constexpr int kMaxRows = kLanes == kPanelRows ? 4 : 2;

HWY_INLINE VF LoadValues(const float* p) { return hn::LoadU(DF(), p); }
HWY_INLINE VF LoadValues(const hwy::float16_t* p) {
  return hn::PromoteTo(DF(), hn::LoadU(hn::Rebind<hwy::float16_t, DF>(), p));
}
HWY_INLINE VF LoadValues(const hwy::bfloat16_t* p) {
  return hn::PromoteTo(DF(), hn::LoadU(hn::Rebind<hwy::bfloat16_t, DF>(), p));
}

// 16 values of each of kRows input rows.
template <typename T, int kRows>
HWY_NOINLINE void Tile(const T* panel, int64_t k, const float* in, float* HWY_RESTRICT out,
                       int64_t out_stride) {
  const DF df;
  for (int lane = 0; lane < kPanelRows; lane += kLanes) {
    VF acc[kRows][kChains];
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kChains; ++c) acc[r][c] = hn::Zero(df);
    }
    const T* column = panel + lane;
    int64_t i = 0;
    for (; i + kChains <= k; i += kChains) {
      for (int c = 0; c < kChains; ++c) {
        const VF w = LoadValues(column + c * kPanelRows);
        for (int r = 0; r < kRows; ++r) {
          acc[r][c] = hn::MulAdd(w, hn::Set(df, in[r * k + i + c]), acc[r][c]);
        }
      }
      column += kChains * kPanelRows;
    }
    const int rest = static_cast<int>(k - i);
    for (int c = 0; c < kChains - 1; ++c) {
      if (c >= rest) break;
      const VF w = LoadValues(column + c * kPanelRows);
      for (int r = 0; r < kRows; ++r) {
        acc[r][c] = hn::MulAdd(w, hn::Set(df, in[r * k + i + c]), acc[r][c]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const VF sum = hn::Add(hn::Add(acc[r][0], acc[r][1]), hn::Add(acc[r][2], acc[r][3]));
      hn::StoreU(sum, df, out + r * out_stride + lane);
    }
  }
}

template <typename T>
void Panel(const uint8_t* data, int64_t k, const float* in, int64_t rows, float* out,
           int64_t out_stride) {
  const T* panel = reinterpret_cast<const T*>(data);
  for (; rows >= kMaxRows; rows -= kMaxRows) {
    Tile<T, kMaxRows>(panel, k, in, out, out_stride);
    in += kMaxRows * k;
    out += kMaxRows * out_stride;
  }
  for (; rows > 0; --rows) {
    Tile<T, 1>(panel, k, in, out, out_stride);
    in += k;
    out += out_stride;
  }
}

void PlainPanelOf(DType dtype, const uint8_t* panel, int64_t k, const float* in, int64_t rows,
                  float* out, int64_t out_stride) {
  if (dtype == DType::kF32) return Panel<float>(panel, k, in, rows, out, out_stride);
  if (dtype == DType::kF16) return Panel<hwy::float16_t>(panel, k, in, rows, out, out_stride);
  LATENTD_CHECK(dtype == DType::kBF16);
  Panel<hwy::bfloat16_t>(panel, k, in, rows, out, out_stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace latentd {

HWY_EXPORT(PlainPanelOf);

void PlainPanel(const PackedWeight& weight, int64_t panel, const float* in, int64_t rows,
                float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(PlainPanelOf)
  (weight.dtype(), weight.panel(panel), weight.cols(), in, rows, out, out_stride);
}

}  // namespace latentd
#endif  // HWY_ONCE
