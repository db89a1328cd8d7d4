#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"
#include "latentd/v1/generation.pb.h"
#include "scheduler/request.h"
#include "scheduler/scheduler_config.h"
#include "scheduler/serve_stats.h"
#include "server/response_text.h"
#include "server/served_model.h"

// The only place where messages meet our types, and absl::Status meets grpc::Status.
namespace latentd {

// A text to encode, a conversation to render and encode, or tokens as they are.
using Prompt = std::variant<std::string, std::vector<ChatMessage>, std::vector<int32_t>>;

// A GenerateRequest whose fields are in range; only the tokens of the prompt are still unknown.
struct GenerateInput {
  Prompt prompt;
  SamplingParams sampling;
  std::optional<int> max_tokens;  // absent: what the context holds
  StopConditions stop;
};

// The message in a request's bytes. INVALID_ARGUMENT: they are no such message, or a string field
// (named, with the offset) is not UTF-8.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

// The request's id, moved out of it, or `otherwise` where it has none. INVALID_ARGUMENT when it is
// long or would not stay on its line of a log.
absl::StatusOr<std::string> RequestId(v1::GenerateRequest& request, std::string otherwise);

// INVALID_ARGUMENT names the field, its value and the limit. Moves the strings out of `request`.
// `seed` is taken where the request has none.
absl::StatusOr<GenerateInput> FromProto(v1::GenerateRequest& request, const ServedModel& model,
                                        uint64_t seed);
absl::StatusOr<Prompt> FromProto(v1::TokenizeRequest& request, const ServedModel& model);
absl::StatusOr<std::vector<int32_t>> FromProto(const v1::DetokenizeRequest& request,
                                               const ServedModel& model);

// One drawn token, appended.
void AddToken(const GeneratedToken& token, bool with_logprobs, v1::GenerateResponse* response);

// Appends a later response to an earlier one, as a client would that reads both.
void Merge(v1::GenerateResponse&& from, v1::GenerateResponse* to);

// All of Finish but `stop_string`; `generated_tokens` are those that the client got.
struct RequestTimes {
  absl::Duration tokenize;
  absl::Duration total;
};
void FillFinish(const FinishInfo& info, v1::Finish::Reason reason, int generated_tokens,
                const RequestTimes& times, const ServedModel& model, v1::Finish* finish);

void FillModel(const ServedModel& model, const SchedulerConfig& limits,
               v1::GetModelResponse* response);
void FillStats(const ServeStats& stats, const ServedModel& model, v1::GetStatsResponse* response);

// A refusal for want of room carries google.rpc.RetryInfo in its details.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace latentd
