#include <cuda_fp16.h>

#include "base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/plain_ops.h"
#include "kernels/cuda/rows.cuh"

namespace latentd {
namespace {

__global__ void __launch_bounds__(kRowThreads)
    GatherRows(const float* in, const int32_t* rows, int64_t dims, float* out) {
  const float* from = in + rows[blockIdx.x] * dims;
  float* to = out + blockIdx.x * dims;
  for (int64_t i = threadIdx.x; i < dims; i += kRowThreads) to[i] = from[i];
}

struct EmbedArguments {
  const int32_t *token_ids, *positions;  // positions is null without a table
  const __half *table, *position_table;
  int64_t hidden;
  float* out;
};

__global__ void __launch_bounds__(kRowThreads) EmbedRow(EmbedArguments p) {
  const __half* row = p.table + p.token_ids[blockIdx.x] * p.hidden;
  const __half* position =
      p.positions == nullptr ? nullptr : p.position_table + p.positions[blockIdx.x] * p.hidden;
  float* out = p.out + blockIdx.x * p.hidden;
  for (int64_t i = threadIdx.x; i < p.hidden; i += kRowThreads) {
    out[i] = __half2float(row[i]) + (position == nullptr ? 0.0f : __half2float(position[i]));
  }
}

const __half* HalvesOf(const TensorView& table) {
  LATENTD_CHECK(table.dtype == DType::kF16);
  return reinterpret_cast<const __half*>(table.data);
}

}  // namespace

void CudaGather(CudaDevice& device, StepMemory& step, const GatherParams& p) {
  if (p.rows.empty()) return;
  Launch(device, "gather", GatherRows, {static_cast<unsigned>(p.rows.size()), kRowThreads}, p.in,
         step.Bring(p.rows), p.dims, p.out);
}

void CudaEmbed(CudaDevice& device, StepMemory& step, const EmbedParams& p) {
  if (p.token_ids.empty()) return;
  const bool learned = p.position_table != nullptr;
  Launch(device, "embedding", EmbedRow, {static_cast<unsigned>(p.token_ids.size()), kRowThreads},
         {.token_ids = step.Find(p.token_ids),
          .positions = learned ? step.Find(p.positions) : nullptr,
          .table = HalvesOf(p.table),
          .position_table = learned ? HalvesOf(*p.position_table) : nullptr,
          .hidden = p.table.cols,
          .out = p.out});
}

}  // namespace latentd
