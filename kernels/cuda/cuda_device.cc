#include "kernels/cuda/cuda_device.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

constexpr int kLeastCapability = 80;

absl::Status StatusOf(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("CUDA: ", what, ": ", cudaGetErrorString(error)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(int index) {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("--device cuda:", index, ": no GPU can be used: ",
                     found == cudaSuccess ? "there is none" : cudaGetErrorString(found)));
  }
  if (index < 0 || index >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device cuda:", index, ": there are ", count, " GPUs, the first is cuda:0"));
  }
  cudaDeviceProp properties;
  RETURN_IF_ERROR(StatusOf(cudaSetDevice(index), "cudaSetDevice"));
  RETURN_IF_ERROR(StatusOf(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties"));
  std::unique_ptr<CudaDevice> device(new CudaDevice(index));
  device->name_ = properties.name;
  device->multiprocessors_ = properties.multiProcessorCount;
  device->shared_bytes_ = static_cast<int>(properties.sharedMemPerBlockOptin);
  device->capability_ = 10 * properties.major + properties.minor;
  if (device->capability_ < kLeastCapability) {
    return absl::UnimplementedError(absl::StrCat("--device cuda:", index, ": ", device->name_,
                                                 " has compute capability ", properties.major, ".",
                                                 properties.minor, ", the least is 8.0"));
  }
  for (cudaStream_t* stream : {&device->stream_, &device->forked_stream_}) {
    RETURN_IF_ERROR(
        StatusOf(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "cudaStreamCreate"));
  }
  for (cudaEvent_t* event : {&device->forked_, &device->joined_}) {
    RETURN_IF_ERROR(
        StatusOf(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate"));
  }
  return device;
}

CudaDevice::~CudaDevice() {
  for (cudaEvent_t event : {forked_, joined_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  for (cudaStream_t stream : {stream_, forked_stream_}) {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
}

absl::StatusOr<void*> CudaDevice::Allocate(int64_t bytes) {
  MakeCurrent();  // loading and steps may be work of different threads
  ++num_allocations_;
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is no error of the device
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return absl::ResourceExhaustedError(absl::StrCat("cannot reserve ", bytes, " bytes of ", name_,
                                                     "'s memory, ", free, " of ", total,
                                                     " are free"));
  }
  RETURN_IF_ERROR(StatusOf(error, "cudaMalloc"));
  Fill(memory, 0, bytes);
  return memory;
}

void CudaDevice::Free(void* memory, int64_t) { cudaFree(memory); }

void CudaDevice::CopyIn(void* to, const void* from, int64_t bytes) {
  Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
        "copy to the device");
  // How long an asynchronous copy reads `from` depends on the kind of its memory.
  Check(cudaStreamSynchronize(stream_), "copy to the device");
}

void CudaDevice::CopyOut(void* to, const void* from, int64_t bytes) {
  Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
        "copy from the device");
  Check(cudaStreamSynchronize(stream_), "the step");
}

void CudaDevice::Fill(void* to, uint8_t byte, int64_t bytes) {
  Check(cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), stream_), "fill");
}

void CudaDevice::Copy(void* to, const void* from, int64_t bytes) {
  Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_),
        "copy on the device");
}

void CudaDevice::Fork(absl::FunctionRef<void()> work) {
  Check(cudaEventRecord(forked_, stream_), "fork");
  Check(cudaStreamWaitEvent(forked_stream_, forked_, 0), "begin of a branch");
  std::swap(stream_, forked_stream_);
  work();
  Check(cudaEventRecord(joined_, stream_), "end of a branch");
  std::swap(stream_, forked_stream_);
}

void CudaDevice::Join() { Check(cudaStreamWaitEvent(stream_, joined_, 0), "join"); }

absl::StatusOr<std::optional<DeviceMemory>> CudaDevice::Memory() {
  MakeCurrent();
  size_t free = 0, total = 0;
  RETURN_IF_ERROR(StatusOf(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
  return DeviceMemory{.total = static_cast<int64_t>(total),
                      .used = static_cast<int64_t>(total - free)};
}

absl::Status CudaDevice::Wait() {
  Check(cudaStreamSynchronize(stream_), "the step");
  return error_;
}

void CudaDevice::Fail(const std::string& message) {
  if (error_.ok()) error_ = absl::InternalError(message);
}

void CudaDevice::Check(cudaError_t error, const char* what) {
  if (error_.ok()) error_ = StatusOf(error, what);
}

}  // namespace latentd
