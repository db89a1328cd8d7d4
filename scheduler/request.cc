#include "scheduler/request.h"

namespace latentd {

const char* Name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

absl::StatusCode CodeOf(const FinishInfo& info) {
  switch (info.reason) {
    case FinishReason::kCancelled:
      return absl::StatusCode::kCancelled;
    case FinishReason::kDeadline:
      return absl::StatusCode::kDeadlineExceeded;
    case FinishReason::kError:
      return info.status.code();
    default:
      return absl::StatusCode::kOk;
  }
}

}  // namespace latentd
