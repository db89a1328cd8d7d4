#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/device.h"

namespace latentd {
namespace {

// Large pieces come straight from the system, which fills pages as they are first touched: a cache
// takes only what its tokens use.
constexpr int64_t kLarge = int64_t{64} << 20;
constexpr size_t kAlignment = 256;

class HostDevice final : public Device {
 public:
  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    void* data = bytes < kLarge ? Small(bytes) : Large(bytes);
    if (data != nullptr) return data;
    return absl::ResourceExhaustedError(absl::StrCat("cannot reserve ", bytes, " bytes of memory"));
  }
  void Free(void* memory, int64_t bytes) override {
    if (bytes < kLarge) {
      std::free(memory);
    } else {
      munmap(memory, static_cast<size_t>(bytes));
    }
  }
  void CopyIn(void* to, const void* from, int64_t bytes) override { std::memcpy(to, from, bytes); }
  void CopyOut(void* to, const void* from, int64_t bytes) override { std::memcpy(to, from, bytes); }
  void Fill(void* to, uint8_t byte, int64_t bytes) override { std::memset(to, byte, bytes); }
  void Copy(void* to, const void* from, int64_t bytes) override { std::memcpy(to, from, bytes); }
  absl::StatusOr<std::optional<DeviceMemory>> Memory() override { return std::nullopt; }
  bool reads_host_memory() const override { return true; }
  absl::Status Wait() override { return absl::OkStatus(); }

 private:
  static void* Small(int64_t bytes) {
    const size_t padded = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    void* data = std::aligned_alloc(kAlignment, padded);
    if (data != nullptr) std::memset(data, 0, padded);
    return data;
  }
  static void* Large(int64_t bytes) {
    void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    // Large pages save TLB misses in attention; without them all works the same.
    madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    return data;
  }
};

}  // namespace

std::unique_ptr<Device> CreateHostDevice() { return std::make_unique<HostDevice>(); }

}  // namespace latentd
