#pragma once

#include <atomic>
#include <cstddef>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "base/mutex.h"

namespace latentd {

// Who is inside: RPCs and the bytes of their requests, counted before any work is done for one, and
// the ids of the requests being served. Thread-safe.
class Admission {
 public:
  explicit Admission(int max_open) : max_open_(max_open) {}

  // `bytes` of the request, at most kMaxBytes. UNAVAILABLE once closed; RESOURCE_EXHAUSTED with
  // both numbers when full. Every OK is given back by one Leave() of as many bytes.
  absl::Status Enter(size_t bytes);
  void Leave(size_t bytes);

  static constexpr size_t kMaxBytes = size_t{256} << 20;

  // ALREADY_EXISTS when a request of that id is being served. Every OK is given back by one
  // Release().
  absl::Status Claim(const std::string& id);
  void Release(const std::string& id);

  void Close() { closed_ = true; }
  bool closed() const { return closed_; }
  int open() const { return open_.load(std::memory_order_relaxed); }

 private:
  const int max_open_;
  std::atomic<int> open_{0};
  std::atomic<size_t> bytes_{0};
  std::atomic<bool> closed_{false};

  Mutex mu_;
  absl::flat_hash_set<std::string> ids_ ABSL_GUARDED_BY(mu_);
};

}  // namespace latentd
