#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "latentd/v1/generation.pb.h"
#include "server/front_end.h"

namespace latentd {

constexpr absl::string_view kGenerateMethod = "Generate";

// How one Generate ended, as its client saw it.
struct RequestEnd {
  std::string id;            // empty: refused before it had a valid one
  size_t prompt_tokens = 0;  // 0: refused before they were known
  int generated_tokens = 0;
  int code = 0;                                                // gRPC's
  v1::Finish::Reason reason = v1::Finish::REASON_UNSPECIFIED;  // unspecified: refused
  absl::Duration duration;
};

// Counts the end in the metrics and writes it as one line of the debug log, which has numbers and
// never text.
void ReportEnd(const RequestEnd& end, FrontEnd* front_end);

}  // namespace latentd
