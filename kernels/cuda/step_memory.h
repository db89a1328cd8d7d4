#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/plan_view.h"
#include "kernels/params.h"

namespace latentd {

// The spans of a step's ops in the device's memory: those of the StepInputs are brought there once,
// in one copy, others when an op asks for them; and the way back of what ops leave to the host.
// One step at a time; Begin waits for the one before.
class StepMemory {
 public:
  explicit StepMemory(CudaDevice& device) : device_(device) {}
  ~StepMemory();
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;

  void Begin(const StepInputs& step);

  // Where the device finds the span's values, until the next step begins. A span of the StepInputs
  // is known by its address, so they must be alive still.
  template <typename T>
  const T* Find(absl::Span<const T> span) {
    return static_cast<const T*>(FindBytes(span.data(), span.size() * sizeof(T)));
  }
  // The same for a span that is not of the StepInputs, whose memory it may have taken over.
  template <typename T>
  const T* Bring(absl::Span<const T> span) {
    return static_cast<const T*>(BringBytes(span.data(), span.size() * sizeof(T)));
  }
  StepView View(const CacheView& cache);
  // StepView::max_blocks of the step: a power of 2, so that it seldom changes as sequences grow.
  int64_t max_blocks() const { return max_blocks_; }

  // Room for what an op's kernels leave to the host, until the next step begins.
  template <typename T>
  struct Room {
    T* device = nullptr;
    T* host = nullptr;
    size_t count = 0;
  };
  template <typename T>
  Room<T> Reserve(size_t count) {
    const Room<std::byte> bytes = ReserveBytes(count * sizeof(T));
    return {.device = reinterpret_cast<T*>(bytes.device),
            .host = reinterpret_cast<T*>(bytes.host),
            .count = count};
  }
  // Waits for the queue's work and brings its values to the host. Null after an error of the
  // device.
  template <typename T>
  const T* Fetch(const Room<T>& room) {
    device_.CopyOut(room.host, room.device, room.count * int64_t{sizeof(T)});
    return device_.ok() ? room.host : nullptr;
  }

 private:
  // Pinned host memory and as much of the device's; a span has the same place in both.
  struct Chunk {
    std::byte* host = nullptr;
    DeviceArray<std::byte> device;
    size_t size = 0;
    size_t used = 0;
  };
  // A span as it is brought: rows of values, each with room for others after it.
  struct Span {
    const void* host = nullptr;
    size_t bytes = 0;
    size_t rows = 1;
    size_t row_room = bytes;
    size_t room() const;  // in a chunk
  };
  struct Known {
    const void* host;
    size_t bytes;
    const void* device;
  };
  const void* FindBytes(const void* host, size_t bytes);
  const void* BringBytes(const void* host, size_t bytes);
  Room<std::byte> ReserveBytes(size_t bytes);
  // Copies the span to the chunk's host part.
  std::byte* Stage(Chunk& chunk, const Span& span);
  // Copies what was staged from `begin` on to the device.
  void Send(const Chunk& chunk, size_t begin);
  Chunk& ChunkFor(size_t bytes);

  CudaDevice& device_;
  std::vector<Chunk> chunks_;  // the last is in use
  std::vector<Known> known_;
  const int32_t* block_table_ = nullptr;  // of the StepInputs
  int64_t max_blocks_ = 0;
};

}  // namespace latentd
