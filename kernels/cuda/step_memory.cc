#include "kernels/cuda/step_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace latentd {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kLeastChunk = size_t{1} << 20;

size_t Padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

StepMemory::~StepMemory() {
  for (const Chunk& chunk : chunks_) {
    cudaFreeHost(chunk.host);
    cudaFree(chunk.device);
  }
}

void StepMemory::Begin(const StepInputs& step) {
  // Nothing of the last step may still be on its way out of the pinned memory.
  device_.Check(cudaStreamSynchronize(device_.stream()), "the step before");
  known_.clear();
  // What the last step took in several chunks, this one has in one.
  size_t total = 0;
  for (Chunk& chunk : chunks_) total += std::exchange(chunk.used, 0);
  const auto bytes = [](const auto& span) { return span.size() * sizeof(span[0]); };
  const std::pair<const void*, size_t> spans[] = {
      {step.token_ids.data(), bytes(step.token_ids)},
      {step.positions.data(), bytes(step.positions)},
      {step.slots.data(), bytes(step.slots)},
      {step.cu_q_lens.data(), bytes(step.cu_q_lens)},
      {step.kv_lens.data(), bytes(step.kv_lens)},
      {step.block_table.data(), bytes(step.block_table)},
      {step.seat_of.data(), bytes(step.seat_of)},
      {step.first_step_page.data(), bytes(step.first_step_page)}};
  size_t needed = 0;
  for (const auto& [host, size] : spans) needed += Padded(size);
  Chunk& chunk = ChunkFor(std::max(needed, total));
  const size_t begin = chunk.used;
  for (const auto& [host, size] : spans) {
    if (size > 0) known_.push_back({host, size, Stage(chunk, host, size)});
  }
  if (chunk.used > begin) Send(chunk, begin);
}

StepView StepMemory::View(const CacheView& cache) {
  return {.layer = cache.layer,
          .cu_q_lens = Find(cache.cu_q_lens),
          .kv_lens = Find(cache.kv_lens),
          .block_table = Find(cache.block_table),
          .max_blocks = cache.max_blocks,
          .slots = Find(cache.slots),
          .seats = cache.seats,
          .seat_of = Find(cache.seat_of),
          .step_pages = cache.step_pages,
          .first_step_page = Find(cache.first_step_page),
          .num_sequences = static_cast<int>(cache.kv_lens.size()),
          .num_rows = cache.cu_q_lens.empty() ? 0 : cache.cu_q_lens.back()};
}

const void* StepMemory::FindBytes(const void* host, size_t bytes) {
  for (const Known& known : known_) {
    if (known.host == host && known.bytes == bytes) return known.device;
  }
  return BringBytes(host, bytes);
}

const void* StepMemory::BringBytes(const void* host, size_t bytes) {
  if (bytes == 0) return nullptr;
  Chunk& chunk = ChunkFor(Padded(bytes));
  const size_t begin = chunk.used;
  const std::byte* device = Stage(chunk, host, bytes);
  Send(chunk, begin);
  return device;
}

StepMemory::Room<std::byte> StepMemory::ReserveBytes(size_t bytes) {
  Chunk& chunk = ChunkFor(Padded(bytes));
  const Room<std::byte> room{
      .device = chunk.device + chunk.used, .host = chunk.host + chunk.used, .count = bytes};
  chunk.used += Padded(bytes);
  return room;
}

void StepMemory::Send(const Chunk& chunk, size_t begin) {
  device_.Check(cudaMemcpyAsync(chunk.device + begin, chunk.host + begin, chunk.used - begin,
                                cudaMemcpyHostToDevice, device_.stream()),
                "copy of a step's inputs");
}

std::byte* StepMemory::Stage(Chunk& chunk, const void* host, size_t bytes) {
  LATENTD_CHECK(chunk.used + Padded(bytes) <= chunk.size);
  if (chunk.host != nullptr) std::memcpy(chunk.host + chunk.used, host, bytes);
  std::byte* device = chunk.device + chunk.used;
  chunk.used += Padded(bytes);
  return device;
}

StepMemory::Chunk& StepMemory::ChunkFor(size_t bytes) {
  if (!chunks_.empty() && chunks_.back().size - chunks_.back().used >= bytes) return chunks_.back();
  const size_t twice = chunks_.empty() ? 0 : 2 * chunks_.back().size;
  Chunk chunk{.size = std::max({kLeastChunk, Padded(bytes), twice})};
  // Without memory the step goes on with null pointers, to no effect but the device's error.
  void *host = nullptr, *device = nullptr;
  device_.Check(cudaMallocHost(&host, chunk.size), "pinned memory for a step's inputs");
  device_.Check(cudaMalloc(&device, chunk.size), "memory for a step's inputs");
  chunk.host = static_cast<std::byte*>(host);
  chunk.device = static_cast<std::byte*>(device);
  return chunks_.emplace_back(chunk);
}

}  // namespace latentd
