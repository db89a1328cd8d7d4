#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cuda/cuda_device.h"

namespace latentd {

// Copies of rows between the host's memory and a GPU's, in the order of its stream, through two
// pieces of pinned memory: while one travels, all threads of a pool fill or read the other. Errors
// go to the device. Borrows both; one thread at a time.
class StagedCopies {
 public:
  // Rows [begin, end), of which the first lies at `piece`. Called by threads of the pool.
  using Fill = absl::FunctionRef<void(int64_t begin, int64_t end, std::byte* piece)>;
  using Take = absl::FunctionRef<void(int64_t begin, int64_t end, const std::byte* piece)>;

  static absl::StatusOr<std::unique_ptr<StagedCopies>> Create(CudaDevice& device, ThreadPool& pool);
  ~StagedCopies();

  // Brings `rows` rows of `row_bytes` bytes to `to`, as `fill` writes them. `fill` is done when it
  // returns, the copies may not be.
  void In(void* to, int64_t rows, int64_t row_bytes, Fill fill);
  // Gives `take` the rows at `from`, and returns when all are taken.
  void Out(const void* from, int64_t rows, int64_t row_bytes, Take take);

 private:
  struct Piece {
    std::byte* memory = nullptr;
    cudaEvent_t copied = nullptr;  // the latest copy from or to it
  };

  StagedCopies(CudaDevice& device, ThreadPool& pool) : device_(device), pool_(pool) {}
  void Copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, const Piece& piece);
  void WaitFor(const Piece& piece);

  CudaDevice& device_;
  ThreadPool& pool_;
  std::array<Piece, 2> pieces_;
};

}  // namespace latentd
