#include "engine/cache_pool.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

// Any two of them are an fp16 number of a magnitude in [2^-7, 1).
uint8_t RandomByte(uint64_t bits) {
  const auto sign = static_cast<uint8_t>(bits & 0x80);
  return sign | static_cast<uint8_t>(0x20 + (bits >> 8) % 0x1c);
}

}  // namespace

absl::StatusOr<CacheLayout> LargestLayout(const std::vector<CacheLayer>& layers,
                                          int64_t num_sequences, const PoolLimit& limit) {
  ASSIGN_OR_RETURN(const CacheLayout one_block, CacheLayout::Create(layers, 1, 1));
  const int64_t block_bytes = one_block.bytes_per_block();
  const int64_t seats_bytes = one_block.bytes_per_sequence() * num_sequences;
  const int64_t num_blocks = (limit.bytes - seats_bytes) / block_bytes;
  if (limit.bytes >= seats_bytes && num_blocks > 0) {
    return CacheLayout::Create(layers, num_blocks, num_sequences);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      limit.reason, ", the smallest cache takes ", block_bytes + seats_bytes, ": ", block_bytes,
      " for one block of ", kBlockTokens, " tokens and ", seats_bytes, " for what ", num_sequences,
      " sequences at once (latentd's --max-sequences) keep beside their blocks"));
}

absl::StatusOr<PoolLimit> LimitOfFraction(double fraction, Device& device) {
  ASSIGN_OR_RETURN(const std::optional<DeviceMemory> memory, device.Memory());
  if (!memory.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--cache-fraction is ", fraction,
                     ", but this device has no memory of its own; use --cache-bytes"));
  }
  const int64_t share = std::llround(fraction * static_cast<double>(memory->total));
  return PoolLimit{
      .bytes = share - memory->used,
      .reason = absl::StrCat("--cache-fraction is ", fraction, ", which is ", share, " of ",
                             memory->total, " bytes; the weights, the largest step and others use ",
                             memory->used, " and leave ",
                             std::max<int64_t>(0, share - memory->used), " for the cache")};
}

absl::Status RandomizePool(Device& device, const DeviceArray<uint8_t>& pool) {
  constexpr int64_t kPeriod = 8191 * 128;  // not one of the layout's, so that blocks differ
  std::vector<uint8_t> bytes(std::min(kPeriod, pool.size()));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = RandomByte(RandomBits(1, i));
  device.CopyIn(pool.data(), bytes.data(), std::ssize(bytes));
  for (int64_t done = std::ssize(bytes); done < pool.size(); done *= 2) {
    device.Copy(pool.data() + done, pool.data(), std::min(done, pool.size() - done));
  }
  return device.Wait();
}

}  // namespace latentd
