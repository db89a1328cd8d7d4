#include "kernels/cpu/weight_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_format.h"

namespace latentd {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kRegion = size_t{64} << 20;  // address space: only what is used takes memory

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

absl::StatusOr<std::shared_ptr<uint8_t[]>> WeightMemory::Allocate(size_t bytes) {
  bytes = RoundUp(bytes, 64);
  if (used_ + bytes > region_bytes_) {
    const size_t region_bytes = std::max(kRegion, RoundUp(bytes, kHugePage));
    const size_t mapped_bytes = region_bytes + kHugePage;  // room to begin at a huge page
    void* mapped =
        mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("no memory for a weight of %d bytes", bytes));
    }
    const size_t skipped = RoundUp(reinterpret_cast<uintptr_t>(mapped), kHugePage) -
                           reinterpret_cast<uintptr_t>(mapped);
    uint8_t* data = static_cast<uint8_t*>(mapped) + skipped;
    madvise(data, region_bytes, MADV_HUGEPAGE);  // advice: nothing depends on it but speed
    region_ = std::shared_ptr<uint8_t[]>(
        data, [mapped, mapped_bytes](uint8_t*) { munmap(mapped, mapped_bytes); });
    region_bytes_ = region_bytes;
    used_ = 0;
  }
  std::shared_ptr<uint8_t[]> area(region_, region_.get() + used_);
  used_ += bytes;
  return area;
}

}  // namespace latentd
