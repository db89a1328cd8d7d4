#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "kernels/device.h"

namespace latentd {

// One GPU: its memory, and a stream as its queue, with a branch of it (Fork).
class CudaDevice final : public Device {
 public:
  // GPU `index` of the process. FAILED_PRECONDITION without a driver or a GPU, INVALID_ARGUMENT for
  // an index past the last, UNIMPLEMENTED below compute capability 8.0; each names both numbers.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(int index);
  ~CudaDevice() override;

  absl::StatusOr<void*> Allocate(int64_t bytes) override;
  void Free(void* memory, int64_t bytes) override;
  void CopyIn(void* to, const void* from, int64_t bytes) override;
  void CopyOut(void* to, const void* from, int64_t bytes) override;
  void Fill(void* to, uint8_t byte, int64_t bytes) override;
  void Copy(void* to, const void* from, int64_t bytes) override;
  absl::StatusOr<std::optional<DeviceMemory>> Memory() override;
  bool reads_host_memory() const override { return false; }
  absl::Status Wait() override;

  // What follows on this thread is for this GPU: a thread begins with the process's first one.
  void MakeCurrent() { Check(cudaSetDevice(index_), "cudaSetDevice"); }

  // Notes an error of a call or a launch; the first one is what Wait says from then on.
  void Check(cudaError_t error, const char* what);
  void Fail(const std::string& message);
  bool ok() const { return error_.ok(); }  // no error was noted

  cudaStream_t stream() const { return stream_; }
  // What `work` puts into the queue comes after all that was there before, and may run beside what
  // follows until Join(), which comes before the next Fork() or Wait().
  void Fork(absl::FunctionRef<void()> work);
  void Join();
  // While it is the same, so is the memory that an address stands for.
  int64_t num_allocations() const { return num_allocations_; }
  const std::string& name() const { return name_; }  // "NVIDIA H200"
  int multiprocessors() const { return multiprocessors_; }
  int compute_capability() const { return capability_; }  // 80, 89, 90, ...
  int shared_bytes() const { return shared_bytes_; }      // that a block may take, at most

 private:
  explicit CudaDevice(int index) : index_(index) {}

  const int index_;
  cudaStream_t stream_ = nullptr, forked_stream_ = nullptr;
  cudaEvent_t forked_ = nullptr, joined_ = nullptr;
  std::string name_;
  int multiprocessors_ = 0;
  int capability_ = 0;
  int shared_bytes_ = 0;
  int64_t num_allocations_ = 0;
  absl::Status error_;
};

}  // namespace latentd
