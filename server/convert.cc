#include "server/convert.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "google/rpc/retry_info.pb.h"
#include "kernels/cache_layout.h"

namespace latentd {
namespace {

constexpr int kMaxIdBytes = 128;
constexpr int kMaxStopStrings = 64;
constexpr int kMaxStopBytes = 1024;
constexpr int kMaxStopTokens = 1024;
constexpr float kMaxTemperature = 100;
constexpr std::array<absl::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};
constexpr int kRetrySeconds = 1;

template <class Value>
absl::Status OutOfRange(absl::string_view field, Value value, absl::string_view allowed) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", but must ", allowed));
}

template <class Ids>
absl::StatusOr<std::vector<int32_t>> TokenIds(absl::string_view field, const Ids& ids,
                                              const ServedModel& model) {
  std::vector<int32_t> tokens;
  tokens.reserve(ids.size());
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= model.info.vocab_size) {
      return OutOfRange(absl::StrCat(field, "[", i, "]"), ids[i],
                        absl::StrCat("lie in [0, ", model.info.vocab_size - 1, "]"));
    }
    tokens.push_back(static_cast<int32_t>(ids[i]));
  }
  return tokens;
}

absl::StatusOr<Prompt> TextPrompt(std::string& text) {
  if (text.empty())
    return absl::InvalidArgumentError("text is empty, but a prompt needs 1 token or more");
  return Prompt(std::move(text));
}

absl::StatusOr<Prompt> ChatPrompt(v1::Chat& chat, const ServedModel& model) {
  if (model.chat_template == nullptr) {
    return absl::InvalidArgumentError(
        "chat is set, but the model has no chat template: send text or token_ids");
  }
  if (chat.messages().empty()) {
    return absl::InvalidArgumentError(
        "chat.messages has 0 messages, but a conversation needs 1 or more");
  }
  std::vector<ChatMessage> messages;
  messages.reserve(chat.messages_size());
  for (v1::ChatMessage& message : *chat.mutable_messages()) {
    if (std::find(kRoles.begin(), kRoles.end(), message.role()) == kRoles.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "chat.messages[", messages.size(), "].role is \"", message.role().substr(0, 64),
          "\", but must be one of ", absl::StrJoin(kRoles, ", ")));
    }
    messages.push_back({std::move(*message.mutable_role()), std::move(*message.mutable_content())});
  }
  return Prompt(std::move(messages));
}

absl::StatusOr<SamplingParams> FromProto(const v1::Sampling& proto, const ModelConfig& model,
                                         uint64_t seed) {
  SamplingParams params;
  params.temperature = proto.has_temperature() ? proto.temperature() : model.default_temperature;
  params.top_k = proto.has_top_k() ? proto.top_k() : model.default_top_k;
  params.top_p = proto.has_top_p() ? proto.top_p() : model.default_top_p;
  if (proto.has_min_p()) params.min_p = proto.min_p();
  if (proto.has_repetition_penalty()) params.repetition_penalty = proto.repetition_penalty();
  if (proto.has_presence_penalty()) params.presence_penalty = proto.presence_penalty();
  if (proto.has_frequency_penalty()) params.frequency_penalty = proto.frequency_penalty();
  params.seed = proto.has_seed() ? proto.seed() : seed;
  if (params.temperature > kMaxTemperature) {
    return OutOfRange("temperature", params.temperature,
                      absl::StrCat("lie in [0, ", kMaxTemperature, "]"));
  }
  return params;
}

absl::StatusOr<StopConditions> StopsFrom(v1::GenerateRequest& request, const ServedModel& model) {
  StopConditions stop{.include_stop = request.include_stop(), .min_tokens = request.min_tokens()};
  if (request.stop_size() > kMaxStopStrings) {
    return absl::InvalidArgumentError(absl::StrCat(
        "stop has ", request.stop_size(), " strings, but may have at most ", kMaxStopStrings));
  }
  for (std::string& text : *request.mutable_stop()) {
    if (text.empty() || text.size() > kMaxStopBytes) {
      return absl::InvalidArgumentError(absl::StrCat("stop[", stop.strings.size(), "] has ",
                                                     text.size(), " bytes, but must have 1 to ",
                                                     kMaxStopBytes));
    }
    stop.strings.push_back(std::move(text));
  }
  if (request.stop_token_ids_size() > kMaxStopTokens) {
    return absl::InvalidArgumentError(absl::StrCat("stop_token_ids has ",
                                                   request.stop_token_ids_size(),
                                                   " ids, but may have at most ", kMaxStopTokens));
  }
  ASSIGN_OR_RETURN(stop.token_ids, TokenIds("stop_token_ids", request.stop_token_ids(), model));
  if (!request.ignore_eos()) {
    stop.token_ids.insert(stop.token_ids.end(), model.config.eos_token_ids.begin(),
                          model.config.eos_token_ids.end());
  }
  return stop;
}

}  // namespace

absl::StatusOr<std::string> RequestId(v1::GenerateRequest& request, std::string otherwise) {
  const std::string& id = request.request_id();
  if (id.empty()) return otherwise;
  if (id.size() > kMaxIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("request_id has ", id.size(), " bytes, but may have at most ", kMaxIdBytes));
  }
  for (size_t i = 0; i < id.size(); ++i) {
    const auto byte = static_cast<uint8_t>(id[i]);
    // U+0080 to U+009F are 0xc2 and one of 0x80 to 0x9f.
    const bool c1 = byte == 0xc2 && i + 1 < id.size() && static_cast<uint8_t>(id[i + 1]) < 0xa0;
    if (byte >= 0x20 && byte != 0x7f && !c1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("request_id has a control character, 0x",
                     absl::Hex(c1 ? static_cast<uint8_t>(id[i + 1]) : byte, absl::kZeroPad2),
                     ", at byte ", i, ", but may have none"));
  }
  return std::move(*request.mutable_request_id());
}

absl::StatusOr<GenerateInput> FromProto(v1::GenerateRequest& request, const ServedModel& model,
                                        uint64_t seed) {
  GenerateInput input;
  ASSIGN_OR_RETURN(input.sampling, FromProto(request.sampling(), model.config, seed));
  if (request.has_logprobs()) {
    input.sampling.num_logprobs = request.logprobs();
    if (request.logprobs() < 0) return OutOfRange("logprobs", request.logprobs(), "lie in [0, 20]");
  }
  RETURN_IF_ERROR(Validate(input.sampling));
  if (request.has_max_tokens()) {
    if (request.max_tokens() < 1)
      return OutOfRange("max_tokens", request.max_tokens(), "be at least 1");
    input.max_tokens = request.max_tokens();
  }
  if (request.min_tokens() < 0)
    return OutOfRange("min_tokens", request.min_tokens(), "be at least 0");
  if (input.max_tokens && request.min_tokens() > *input.max_tokens) {
    return OutOfRange("min_tokens", request.min_tokens(),
                      absl::StrCat("be at most max_tokens, which is ", *input.max_tokens));
  }
  ASSIGN_OR_RETURN(input.stop, StopsFrom(request, model));

  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText: {
      ASSIGN_OR_RETURN(input.prompt, TextPrompt(*request.mutable_text()));
      break;
    }
    case v1::GenerateRequest::kChat: {
      ASSIGN_OR_RETURN(input.prompt, ChatPrompt(*request.mutable_chat(), model));
      break;
    }
    case v1::GenerateRequest::kTokenIds: {
      if (request.token_ids().ids().empty()) {
        return absl::InvalidArgumentError(
            "token_ids.ids has 0 ids, but a prompt needs 1 token or more");
      }
      ASSIGN_OR_RETURN(input.prompt, TokenIds("token_ids.ids", request.token_ids().ids(), model));
      break;
    }
    case v1::GenerateRequest::PROMPT_NOT_SET:
      return absl::InvalidArgumentError("prompt is missing: set text, token_ids or chat");
  }
  return input;
}

absl::StatusOr<Prompt> FromProto(v1::TokenizeRequest& request, const ServedModel& model) {
  switch (request.input_case()) {
    case v1::TokenizeRequest::kText:
      return Prompt(std::move(*request.mutable_text()));  // an empty text has its tokens, too
    case v1::TokenizeRequest::kChat:
      return ChatPrompt(*request.mutable_chat(), model);
    case v1::TokenizeRequest::INPUT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("input is missing: set text or chat");
}

absl::StatusOr<std::vector<int32_t>> FromProto(const v1::DetokenizeRequest& request,
                                               const ServedModel& model) {
  return TokenIds("token_ids", request.token_ids(), model);
}

void AddToken(const GeneratedToken& token, bool with_logprobs, v1::GenerateResponse* response) {
  response->add_token_ids(token.id);
  if (!with_logprobs) return;
  v1::TokenLogprobs* logprobs = response->add_logprobs();
  logprobs->set_logprob(token.logprob);
  for (const TokenLogprob& candidate : token.top_logprobs) {
    auto* top = logprobs->add_top();
    top->set_token_id(candidate.token_id);
    top->set_logprob(candidate.logprob);
  }
}

void Merge(v1::GenerateResponse&& from, v1::GenerateResponse* to) {
  if (!from.request_id().empty()) to->set_request_id(std::move(*from.mutable_request_id()));
  to->mutable_text()->append(from.text());
  to->mutable_token_ids()->MergeFrom(from.token_ids());
  to->mutable_logprobs()->MergeFrom(from.logprobs());
  if (from.has_finish()) *to->mutable_finish() = std::move(*from.mutable_finish());
}

void FillFinish(const FinishInfo& info, v1::Finish::Reason reason, int generated_tokens,
                const RequestTimes& times, const ServedModel& model, v1::Finish* finish) {
  finish->set_reason(reason);
  v1::Usage* usage = finish->mutable_usage();
  usage->set_prompt_tokens(info.prompt_tokens);
  usage->set_cached_tokens(info.cached_tokens);
  usage->set_generated_tokens(generated_tokens);
  usage->set_preemptions(info.preemptions);
  usage->set_cache_bytes(info.cache_bytes);
  usage->set_full_cache_bytes(info.full_cache_bytes);
  v1::Timings* timings = finish->mutable_timings();
  timings->set_tokenize_seconds(absl::ToDoubleSeconds(times.tokenize));
  timings->set_queue_seconds(absl::ToDoubleSeconds(info.queue_time));
  timings->set_prefill_seconds(absl::ToDoubleSeconds(info.prefill_time));
  timings->set_decode_seconds(absl::ToDoubleSeconds(info.decode_time));
  timings->set_total_seconds(absl::ToDoubleSeconds(times.total));
}

void FillModel(const ServedModel& model, const SchedulerConfig& limits,
               v1::GetModelResponse* response) {
  const ModelConfig& config = model.config;
  const EngineInfo& info = model.info;
  response->set_name(info.model_name);
  response->set_family(info.family);
  response->set_device(info.device);
  response->set_server_version(kVersion);
  response->set_vocab_size(info.vocab_size);
  response->set_num_layers(info.num_layers);
  response->set_hidden_dim(config.hidden_dim);
  response->set_num_heads(config.num_heads);
  response->set_num_kv_heads(config.num_kv_heads);
  response->set_head_dim(config.head_dim);
  for (int32_t id : config.eos_token_ids) response->add_eos_token_ids(id);
  response->set_has_chat_template(model.chat_template != nullptr);
  response->set_weight_bytes(info.weight_bytes);
  response->set_weight_type(info.weight_type);
  response->set_decode_kernels(info.decode_kernels);

  v1::CacheInfo* cache = response->mutable_cache();
  cache->set_name(info.cache_name);
  cache->set_block_tokens(kBlockTokens);
  cache->set_num_blocks(info.num_blocks);
  cache->set_bytes_per_token(info.bytes_per_token);
  cache->set_k_bytes_per_token(info.k_bytes_per_token);
  cache->set_v_bytes_per_token(info.v_bytes_per_token);
  cache->set_full_bytes_per_token(info.full_bytes_per_token);
  cache->set_bytes_per_sequence(info.bytes_per_sequence);
  cache->set_sliding_window(info.sliding_window);
  cache->set_factor_bytes(info.factor_bytes);
  if (info.bytes_per_token > 0)
    cache->set_compression_ratio(info.full_bytes_per_token / info.bytes_per_token);

  response->set_max_context(info.max_context);
  response->set_max_batch_tokens(limits.max_batch_tokens);
  response->set_max_sequences(limits.max_sequences);
  response->set_max_queued(limits.max_queued_requests);
}

void FillStats(const ServeStats& stats, const ServedModel& model, v1::GetStatsResponse* response) {
  response->set_running(stats.running);
  response->set_waiting(stats.waiting);
  response->set_blocks_used(stats.blocks_used);
  response->set_blocks_total(stats.blocks_total);
  response->set_cache_bytes_used(stats.cache_bytes_used);
  response->set_cache_bytes_total(stats.cache_bytes_total);
  response->set_seats_total(static_cast<int32_t>(stats.seats_total));
  response->set_steps(stats.steps);
  response->set_prompt_tokens(stats.prompt_tokens);
  response->set_recomputed_tokens(stats.recomputed_tokens);
  response->set_generated_tokens(stats.generated_tokens);
  response->set_preemptions(stats.preemptions);
  const auto finished = [&](FinishReason reason) {
    return stats.requests_finished[static_cast<int>(reason)];
  };
  response->set_finished_stop(finished(FinishReason::kStop));
  response->set_finished_length(finished(FinishReason::kLength));
  response->set_finished_cancelled(finished(FinishReason::kCancelled));
  response->set_finished_deadline(finished(FinishReason::kDeadline));
  response->set_finished_error(finished(FinishReason::kError));
}

grpc::Status ToGrpc(const absl::Status& status) {
  const std::string message(status.message());
  const auto code = static_cast<grpc::StatusCode>(status.code());  // the same numbers by design
  if (!absl::IsResourceExhausted(status)) return grpc::Status(code, message);
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(kRetrySeconds);
  google::rpc::Status details;
  details.set_code(code);
  details.set_message(message);
  details.add_details()->PackFrom(retry);
  return grpc::Status(code, message, details.SerializeAsString());
}

}  // namespace latentd
