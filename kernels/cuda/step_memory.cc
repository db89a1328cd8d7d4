#include "kernels/cuda/step_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"

namespace latentd {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kLeastChunk = size_t{1} << 20;

size_t Padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

StepMemory::~StepMemory() {
  for (const Chunk& chunk : chunks_) cudaFreeHost(chunk.host);
}

size_t StepMemory::Span::room() const { return Padded(rows * row_room); }

void StepMemory::Begin(const StepInputs& step) {
  // Nothing of the last step may still be on its way out of the pinned memory.
  device_.Check(cudaStreamSynchronize(device_.stream()), "the step before");
  known_.clear();
  // What the last step took in several chunks, this one has in one.
  size_t total = 0;
  for (Chunk& chunk : chunks_) total += std::exchange(chunk.used, 0);
  const auto of = [](const auto& span) {
    return Span{.host = span.data(), .bytes = span.size() * sizeof(span[0])};
  };
  Span block_table = of(step.block_table);
  block_table.rows = std::max<size_t>(1, step.kv_lens.size());
  const size_t max_blocks = std::bit_ceil(step.block_table.size() / block_table.rows);
  block_table.row_room = max_blocks * sizeof(int32_t);
  block_table_ = step.block_table.data();
  max_blocks_ = static_cast<int64_t>(max_blocks);
  const Span spans[] = {of(step.token_ids), of(step.positions),      of(step.slots),
                        of(step.cu_q_lens), of(step.kv_lens),        block_table,
                        of(step.seat_of),   of(step.first_step_page)};
  size_t needed = 0;
  for (const Span& span : spans) needed += span.room();
  Chunk& chunk = ChunkFor(std::max(needed, total));
  const size_t begin = chunk.used;
  for (const Span& span : spans) {
    if (span.bytes > 0) known_.push_back({span.host, span.bytes, Stage(chunk, span)});
  }
  if (chunk.used > begin) Send(chunk, begin);
}

StepView StepMemory::View(const CacheView& cache) {
  return {.layer = cache.layer,
          .cu_q_lens = Find(cache.cu_q_lens),
          .kv_lens = Find(cache.kv_lens),
          .block_table = Find(cache.block_table),
          .max_blocks = cache.block_table.data() == block_table_ ? max_blocks_ : cache.max_blocks,
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
  const std::byte* device = Stage(chunk, {.host = host, .bytes = bytes});
  Send(chunk, begin);
  return device;
}

StepMemory::Room<std::byte> StepMemory::ReserveBytes(size_t bytes) {
  Chunk& chunk = ChunkFor(Padded(bytes));
  const Room<std::byte> room{
      .device = chunk.device.data() + chunk.used, .host = chunk.host + chunk.used, .count = bytes};
  chunk.used += Padded(bytes);
  return room;
}

void StepMemory::Send(const Chunk& chunk, size_t begin) {
  device_.Check(cudaMemcpyAsync(chunk.device.data() + begin, chunk.host + begin, chunk.used - begin,
                                cudaMemcpyHostToDevice, device_.stream()),
                "copy of a step's inputs");
}

std::byte* StepMemory::Stage(Chunk& chunk, const Span& span) {
  LATENTD_CHECK(span.bytes % span.rows == 0 && chunk.used + span.room() <= chunk.size);
  const size_t row_bytes = span.bytes / span.rows;
  for (size_t row = 0; row < span.rows && chunk.host != nullptr; ++row) {
    std::memcpy(chunk.host + chunk.used + row * span.row_room,
                static_cast<const std::byte*>(span.host) + row * row_bytes, row_bytes);
  }
  std::byte* device = chunk.device.data() + chunk.used;
  chunk.used += span.room();
  return device;
}

StepMemory::Chunk& StepMemory::ChunkFor(size_t bytes) {
  if (!chunks_.empty() && chunks_.back().size - chunks_.back().used >= bytes) return chunks_.back();
  const size_t twice = chunks_.empty() ? 0 : 2 * chunks_.back().size;
  Chunk chunk{.size = std::max({kLeastChunk, Padded(bytes), twice})};
  // Without memory the step goes on with null pointers, to no effect but the device's error.
  void* host = nullptr;
  device_.Check(cudaMallocHost(&host, chunk.size), "pinned memory for a step's inputs");
  chunk.host = static_cast<std::byte*>(host);
  const absl::Status status = chunk.device.Reserve(device_, static_cast<int64_t>(chunk.size));
  if (!status.ok()) device_.Fail(std::string(status.message()));
  return chunks_.emplace_back(std::move(chunk));
}

}  // namespace latentd
