#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <vector>

namespace latentd {

// Working memory of the CPU ops that grows to what the largest step needs and is then reused: no
// allocation per op. Owned by CpuOps. Memory is aligned to 64 bytes, uninitialised, and valid until
// the next call for the same place.
class Scratch {
 public:
  explicit Scratch(int num_threads) : threads_(num_threads) {}

  // One area that all threads of a region share; called outside of regions.
  template <typename T>
  T* Shared(size_t count) {
    return static_cast<T*>(shared_.Reserve(count * sizeof(T)));
  }

  // The area of one thread of a region; called by that thread.
  template <typename T>
  T* ForThread(int thread, size_t count) {
    return static_cast<T*>(threads_[thread].Reserve(count * sizeof(T)));
  }

 private:
  struct alignas(64) Area {
    void* Reserve(size_t bytes) {
      if (bytes > capacity) {
        capacity = std::max(bytes, 2 * capacity);
        data.reset(static_cast<std::byte*>(::operator new(capacity, std::align_val_t{64})));
      }
      return data.get();
    }
    struct Free {
      void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{64}); }
    };
    std::unique_ptr<std::byte, Free> data;
    size_t capacity = 0;
  };

  Area shared_;
  std::vector<Area> threads_;
};

}  // namespace latentd
