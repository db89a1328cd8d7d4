#include "engine/cache_pool.h"

#include <sys/mman.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace latentd {

absl::StatusOr<std::unique_ptr<CachePool>> CachePool::Create(int64_t bytes) {
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot reserve a cache of ", bytes, " bytes (errno ", errno, "): lower --cache-bytes"));
  }
  // Large pages save TLB misses in attention; without them the cache works all the same.
  madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return std::unique_ptr<CachePool>(
      new CachePool(static_cast<uint8_t*>(data), static_cast<size_t>(bytes)));
}

CachePool::~CachePool() { munmap(data_, bytes_); }

}  // namespace latentd
