// The CUDA runtime's functions that latentd calls, for one device that runs on the CPU: Hopper's
// features and shared memory, and few multiprocessors, so that little work is shared out.

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/emulation/queue.h"

namespace {

using Work = std::vector<std::function<void()>>;
std::unique_ptr<Work> recorded;
bool spoiled = false;  // the recording

// What may not happen while a graph is recorded ends the recording.
cudaError_t MayWait() {
  if (recorded == nullptr) return cudaSuccess;
  spoiled = true;
  return cudaErrorStreamCaptureUnsupported;
}

void Copy(void* to, const void* from, size_t bytes) {
  latentd::emulation::Put([=] { std::memmove(to, from, bytes); });
}

}  // namespace

namespace latentd::emulation {
void Put(std::function<void()> work) {
  if (recorded != nullptr) {
    recorded->push_back(std::move(work));
  } else {
    work();
  }
}
}  // namespace latentd::emulation

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "NVIDIA GPU, emulated");
  properties->multiProcessorCount = 6;
  properties->sharedMemPerBlockOptin = 227 << 10;
  properties->major = 9;
  properties->minor = 0;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "emulated error"; }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = nullptr, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return MayWait(); }
// All streams are one queue.
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = nullptr, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  constexpr size_t kMost = size_t{8} << 30;
  if (const cudaError_t error = MayWait(); error != cudaSuccess) return error;
  *memory = bytes > kMost ? nullptr : std::aligned_alloc(1024, (bytes + 1024) / 1024 * 1024);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* memory) { return std::free(memory), cudaSuccess; }
cudaError_t cudaMallocHost(void** memory, size_t bytes) { return cudaMalloc(memory, bytes); }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = size_t{7} << 30;
  *total = size_t{8} << 30;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  return Copy(to, from, bytes), cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t) {
  latentd::emulation::Put([=] { std::memset(to, byte, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  recorded = std::make_unique<Work>();
  spoiled = false;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  const std::unique_ptr<Work> work = std::move(recorded);
  if (spoiled) return cudaErrorStreamCaptureInvalidated;
  *graph = reinterpret_cast<cudaGraph_t>(new Work(*work));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* graph, cudaGraph_t from, unsigned long long) {
  *graph = reinterpret_cast<cudaGraphExec_t>(new Work(*reinterpret_cast<Work*>(from)));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return delete reinterpret_cast<Work*>(graph), cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return delete reinterpret_cast<Work*>(graph), cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  for (const auto& work : *reinterpret_cast<Work*>(graph)) work();
  return cudaSuccess;
}

}  // extern "C"
