#include "server/request_end.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/support/status_code_enum.h"
#include "spdlog/spdlog.h"

namespace latentd {
namespace {

// The label of a refusal.
const char* RejectReason(int code, bool draining) {
  switch (code) {
    case grpc::StatusCode::INVALID_ARGUMENT:
      return "invalid";
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return "queue_full";
    case grpc::StatusCode::ALREADY_EXISTS:
      return "duplicate_id";
    case grpc::StatusCode::UNAVAILABLE:
      return draining ? "draining" : "engine_dead";
    default:
      return "error";
  }
}

}  // namespace

void ReportEnd(const RequestEnd& end, FrontEnd* front_end) {
  const bool refused = end.reason == v1::Finish::REASON_UNSPECIFIED;
  const std::string reason =
      refused ? "refused" : absl::AsciiStrToLower(v1::Finish::Reason_Name(end.reason));
  front_end->metrics->OnRpcDone(kGenerateMethod, end.code, end.duration);
  front_end->metrics->OnRequestDone(end.code, reason);
  if (refused)
    front_end->metrics->OnRejected(RejectReason(end.code, front_end->admission->closed()));
  spdlog::debug("request {}: {} prompt tokens, {} produced, {}{}, {:.3f} s",
                end.id.empty() ? "without a valid id" : end.id, end.prompt_tokens,
                end.generated_tokens, reason,
                end.code == 0 ? "" : absl::StrCat(" (", GrpcCodeName(end.code), ")"),
                absl::ToDoubleSeconds(end.duration));
}

}  // namespace latentd
