#pragma once

#include <atomic>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "base/mutex.h"

namespace latentd {

// Who is inside: a count of RPCs, taken before any work is done for one, and the ids of the
// requests being served. Thread-safe.
class Admission {
 public:
  explicit Admission(int limit) : limit_(limit) {}

  // UNAVAILABLE once closed; RESOURCE_EXHAUSTED with both numbers when full. Every OK is given back
  // by one Leave().
  absl::Status Enter();
  void Leave() { open_.fetch_sub(1, std::memory_order_relaxed); }

  // ALREADY_EXISTS when a request of that id is being served. Every OK is given back by one
  // Release().
  absl::Status Claim(const std::string& id);
  void Release(const std::string& id);

  void Close() { closed_ = true; }
  bool closed() const { return closed_; }
  int open() const { return open_.load(std::memory_order_relaxed); }

 private:
  const int limit_;
  std::atomic<int> open_{0};
  std::atomic<bool> closed_{false};

  Mutex mu_;
  absl::flat_hash_set<std::string> ids_ ABSL_GUARDED_BY(mu_);
};

}  // namespace latentd
