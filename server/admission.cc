#include "server/admission.h"

#include "absl/strings/str_cat.h"

namespace latentd {

absl::Status Admission::Enter(size_t bytes) {
  if (closed_)
    return absl::UnavailableError("the server is shutting down and takes no new requests");
  const int open = open_.fetch_add(1, std::memory_order_relaxed);
  const size_t held = bytes_.fetch_add(bytes, std::memory_order_relaxed);
  if (open < max_open_ && held + bytes <= kMaxBytes) return absl::OkStatus();
  Leave(bytes);
  if (open >= max_open_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(open, " requests are open, and the server takes ", max_open_));
  }
  return absl::ResourceExhaustedError(absl::StrCat("the open requests have ", held,
                                                   " bytes and this one ", bytes,
                                                   ", and the server takes ", kMaxBytes));
}

void Admission::Leave(size_t bytes) {
  open_.fetch_sub(1, std::memory_order_relaxed);
  bytes_.fetch_sub(bytes, std::memory_order_relaxed);
}

absl::Status Admission::Claim(const std::string& id) {
  MutexLock lock(&mu_);
  if (ids_.insert(id).second) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("a request of id \"", id, "\" is being served"));
}

void Admission::Release(const std::string& id) {
  MutexLock lock(&mu_);
  ids_.erase(id);
}

}  // namespace latentd
