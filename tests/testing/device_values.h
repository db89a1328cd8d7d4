#pragma once

#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/check.h"
#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "tests/testing/paged_cache.h"

namespace latentd {

// Values of the host where an op finds them, and back.
template <typename T>
DeviceArray<T> ToDevice(Ops& ops, const std::vector<T>& values) {
  absl::StatusOr<DeviceArray<T>> array = DeviceArray<T>::CopyOf(ops.device(), values);
  LATENTD_CHECK(array.ok());
  return *std::move(array);
}

template <typename T>
std::vector<T> ToHost(Ops& ops, const DeviceArray<T>& array) {
  std::vector<T> values(array.size());
  if (!values.empty()) {
    ops.device().CopyOut(values.data(), array.data(), array.size() * int64_t{sizeof(T)});
  }
  const absl::Status status = ops.device().Wait();
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

// Memory of a test in a device's, with the guards on both sides.
class MemoryOnDevice {
 public:
  MemoryOnDevice(Ops& ops, PoisonedMemory& host)
      : ops_(ops), host_(host.with_guards()), copy_(ToDevice(ops, {host_.begin(), host_.end()})) {}
  MemoryOnDevice(const MemoryOnDevice&) = delete;
  MemoryOnDevice& operator=(const MemoryOnDevice&) = delete;

  uint8_t* data() const { return copy_.data() + PoisonedMemory::kGuardBytes; }
  void CopyBack() { ops_.device().CopyOut(host_.data(), copy_.data(), copy_.size()); }

 private:
  static DeviceArray<uint8_t> ToDevice(Ops& ops, const std::vector<uint8_t>& bytes) {
    return latentd::ToDevice(ops, bytes);
  }

  Ops& ops_;
  const absl::Span<uint8_t> host_;
  const DeviceArray<uint8_t> copy_;
};

// A cache and a step's pages in a device's memory, for ops of that step.
class DeviceCache {
 public:
  // All three outlive it. Begins the step.
  DeviceCache(Ops& ops, PagedCache& cache, const PagedStep& step)
      : pool_(ops, cache.memory()), pages_(ops, *step.step_pages), view_(cache.View(step)) {
    view_.seats = pool_.data() + (view_.seats - view_.layer);
    view_.layer = pool_.data();
    view_.step_pages = pages_.data();
    ops.BeginStep({.positions = step.positions,
                   .slots = view_.slots,
                   .cu_q_lens = view_.cu_q_lens,
                   .kv_lens = view_.kv_lens,
                   .block_table = view_.block_table,
                   .seat_of = view_.seat_of,
                   .first_step_page = view_.first_step_page});
  }
  const CacheView& view() const { return view_; }

  // What the ops have written, to the cache and the step's pages.
  void CopyBack() {
    pool_.CopyBack();
    pages_.CopyBack();
  }

 private:
  MemoryOnDevice pool_, pages_;
  CacheView view_;
};

}  // namespace latentd
