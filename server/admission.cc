#include "server/admission.h"

#include "absl/strings/str_cat.h"

namespace latentd {

absl::Status Admission::Enter() {
  if (closed_) return absl::UnavailableError("the server is shutting down");
  const int open = open_.fetch_add(1, std::memory_order_relaxed);
  if (open < limit_) return absl::OkStatus();
  Leave();
  return absl::ResourceExhaustedError(
      absl::StrCat(open, " requests are open, and the server takes ", limit_));
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
