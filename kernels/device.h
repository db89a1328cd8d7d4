#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace latentd {

struct DeviceMemory {
  int64_t total = 0;  // bytes
  int64_t used = 0;   // by this program and all others
};

// The memory of a device and its queue of work, which runs in order. Owned by the Ops that computes
// there, and used from its thread alone.
class Device {
 public:
  virtual ~Device() = default;

  // Zeroed memory, aligned to 256 bytes; bytes > 0. RESOURCE_EXHAUSTED names the bytes.
  virtual absl::StatusOr<void*> Allocate(int64_t bytes) = 0;
  virtual void Free(void* memory, int64_t bytes) = 0;

  // CopyIn has read `from`, memory of the host, when it returns. CopyOut waits for the queue's work
  // and has then written `to`.
  virtual void CopyIn(void* to, const void* from, int64_t bytes) = 0;
  virtual void CopyOut(void* to, const void* from, int64_t bytes) = 0;
  virtual void Fill(void* to, uint8_t byte, int64_t bytes) = 0;
  virtual void Copy(void* to, const void* from, int64_t bytes) = 0;  // both the device's, apart

  // nullopt for the host's memory, which the system gives out as it is touched.
  virtual absl::StatusOr<std::optional<DeviceMemory>> Memory() = 0;

  // Whether ops can read the host's memory as it is.
  virtual bool reads_host_memory() const = 0;

  // Waits for the queue's work. An error, INTERNAL, is the device's first one and stays.
  virtual absl::Status Wait() = 0;
};

// The process's own memory, taken from the system as it is first touched.
std::unique_ptr<Device> CreateHostDevice();

// Values in a device's memory, which outlives them. Movable.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceArray() { Release(); }

  // Zeros.
  static absl::StatusOr<DeviceArray> Create(Device& device, int64_t size) {
    DeviceArray array;
    absl::Status status = array.Reserve(device, size);
    if (!status.ok()) return status;
    return array;
  }
  static absl::StatusOr<DeviceArray> CopyOf(Device& device, absl::Span<const T> values) {
    absl::StatusOr<DeviceArray> array = Create(device, static_cast<int64_t>(values.size()));
    if (array.ok() && !values.empty()) {
      device.CopyIn(array->data(), values.data(), array->size() * int64_t{sizeof(T)});
    }
    return array;
  }

  // At least `size` values. Growing loses what it held; it never shrinks, so that a step allocates
  // nothing once the largest was seen.
  absl::Status Reserve(Device& device, int64_t size) {
    if (size <= size_) return absl::OkStatus();
    Release();
    absl::StatusOr<void*> memory = device.Allocate(size * int64_t{sizeof(T)});
    if (!memory.ok()) return memory.status();
    device_ = &device;
    data_ = static_cast<T*>(*memory);
    size_ = size;
    return absl::OkStatus();
  }

  T* data() const { return data_; }  // null when empty
  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  void Release() {
    if (data_ != nullptr) device_->Free(data_, size_ * int64_t{sizeof(T)});
    data_ = nullptr;
    size_ = 0;
  }

  Device* device_ = nullptr;
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace latentd
