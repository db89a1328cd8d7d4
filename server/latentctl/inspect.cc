#include <cstdio>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "server/latentctl/client.h"
#include "server/latentctl/commands.h"
#include "server/latentctl/message_json.h"
#include "server/latentctl/request_flags.h"

// The commands that look, and change nothing: tokenize, model, stats.
namespace latentd {

absl::Status TokenizeCommand(Arguments args) {
  std::string target, chat, decode;
  bool json = false, plain = false;
  CommandLine flags({.program = "latentctl tokenize",
                     .summary = "Prints the token ids of TEXT, or the text of token ids.",
                     .example = "latentctl tokenize \"Hello, world\"",
                     .positional = "[TEXT | -]"});
  AddTargetFlag(&flags, &target);
  flags.Add("chat", &chat, "TEXT", "a question, put through the model's chat template");
  flags.Add("decode", &decode, "IDS", "ids to turn into text: 12,7,99");
  flags.Add("plain", &plain, "without the special tokens (BOS) around a text");
  flags.Add("json", &json, "print one JSON object");
  flags.ParseOrExit(args);
  if (!chat.empty() + !decode.empty() + !flags.positional().empty() != 1 ||
      flags.positional().size() > 1) {
    return absl::InvalidArgumentError(
        "give exactly one of TEXT (- reads it from stdin), --chat and --decode");
  }
  Client client(target);
  if (!decode.empty()) {
    v1::DetokenizeRequest request;
    ASSIGN_OR_RETURN(const std::vector<int64_t> ids, ParseIds("--decode", decode));
    request.mutable_token_ids()->Assign(ids.begin(), ids.end());
    ASSIGN_OR_RETURN(const v1::DetokenizeResponse response, client.Detokenize(request));
    std::fputs(json ? JsonLine(ToJson(response)).c_str() : (response.text() + "\n").c_str(),
               stdout);
    return absl::OkStatus();
  }
  v1::TokenizeRequest request;
  request.set_plain(plain);
  if (!chat.empty()) {
    v1::ChatMessage* message = request.mutable_chat()->add_messages();
    message->set_role("user");
    message->set_content(TextOrInput(chat));
  } else {
    request.set_text(TextOrInput(flags.positional()[0]));
  }
  ASSIGN_OR_RETURN(const v1::TokenizeResponse response, client.Tokenize(request));
  const std::string ids = absl::StrJoin(response.token_ids(), " ") + "\n";
  std::fputs(json ? JsonLine(ToJson(response)).c_str() : ids.c_str(), stdout);
  return absl::OkStatus();
}

namespace {

void Row(const char* name, const std::string& value) {
  std::printf("%-22s %s\n", name, value.c_str());
}
void Row(const char* name, int64_t value) { Row(name, std::to_string(value)); }

std::string PerToken(double bytes) { return absl::StrFormat("%.1f bytes", bytes); }

void PrintCache(const v1::GetModelResponse& model) {
  const v1::CacheInfo& cache = model.cache();
  const int64_t tokens = cache.num_blocks() * cache.block_tokens();
  const double bytes = static_cast<double>(tokens) * cache.bytes_per_token() +
                       model.max_sequences() * cache.bytes_per_sequence();
  Row("cache", cache.name());
  Row("  bytes per token",
      absl::StrFormat("%s (K %s, V %s)", PerToken(cache.bytes_per_token()),
                      PerToken(cache.k_bytes_per_token()), PerToken(cache.v_bytes_per_token())));
  Row("  and once per request", FormatBytes(cache.bytes_per_sequence()));
  Row("  uncompressed",
      absl::StrFormat("%s, %.2f times as much", PerToken(cache.full_bytes_per_token()),
                      cache.compression_ratio()));
  Row("  holds", absl::StrFormat("%d tokens in %s; uncompressed, %.0f tokens", tokens,
                                 FormatBytes(bytes), bytes / cache.full_bytes_per_token()));
  if (cache.factor_bytes() > 0) {
    Row("  and its factors", FormatBytes(static_cast<double>(cache.factor_bytes())));
  }
}

struct LookFlags {
  std::string target;
  bool json = false;
};
LookFlags ParseLookFlags(Arguments args, CommandLine::Info info) {
  LookFlags look;
  CommandLine flags(std::move(info));
  AddTargetFlag(&flags, &look.target);
  flags.Add("json", &look.json, "print one JSON object");
  flags.ParseOrExit(args);
  return look;
}

}  // namespace

absl::Status ModelCommand(Arguments args) {
  const LookFlags look =
      ParseLookFlags(args, {.program = "latentctl model",
                            .summary = "Prints facts about the model, its cache and the limits.",
                            .example = "latentctl model --json",
                            .positional = ""});
  ASSIGN_OR_RETURN(const v1::GetModelResponse model, Client(look.target).GetModel());
  if (look.json) {
    nlohmann::ordered_json json = ToJson(model);
    json["bytes_per_token"] = model.cache().bytes_per_token();
    json["bytes_per_sequence"] = model.cache().bytes_per_sequence();
    json["full_bytes_per_token"] = model.cache().full_bytes_per_token();
    json["ratio"] = model.cache().compression_ratio();
    std::fputs(JsonLine(json).c_str(), stdout);
    return absl::OkStatus();
  }
  Row("model",
      absl::StrFormat("%s (%s), %s of weights, %s", model.name(), model.family(),
                      FormatBytes(static_cast<double>(model.weight_bytes())), model.weight_type()));
  Row("shape",
      absl::StrFormat("%d layers, hidden %d, %d heads over %d KV heads of %d, vocabulary %d",
                      model.num_layers(), model.hidden_dim(), model.num_heads(),
                      model.num_kv_heads(), model.head_dim(), model.vocab_size()));
  Row("chat template", model.has_chat_template() ? "yes" : "no");
  PrintCache(model);
  if (!model.decode_kernels().empty()) Row("decode steps", model.decode_kernels());
  Row("context", absl::StrFormat("%d tokens", model.max_context()));
  Row("limits",
      absl::StrFormat("%d tokens a step, %d requests at once, %d waiting", model.max_batch_tokens(),
                      model.max_sequences(), model.max_queued()));
  Row("server", absl::StrFormat("%s, on %s", model.server_version(), model.device()));
  return absl::OkStatus();
}

absl::Status StatsCommand(Arguments args) {
  const LookFlags look =
      ParseLookFlags(args, {.program = "latentctl stats",
                            .summary = "Prints what the server does now and has done.",
                            .example = "latentctl stats --json",
                            .positional = ""});
  Client client(look.target);
  ASSIGN_OR_RETURN(const v1::GetStatsResponse stats, client.GetStats());
  ASSIGN_OR_RETURN(const v1::GetModelResponse model, client.GetModel());
  if (look.json) {
    nlohmann::ordered_json json = ToJson(stats);
    json["cache"] = ToJson(model.cache());
    std::fputs(JsonLine(json).c_str(), stdout);
    return absl::OkStatus();
  }
  Row("state", absl::StrFormat("%s, up %.0f s",
                               stats.draining() ? "draining"
                               : stats.ready()  ? "ready"
                                                : "starting",
                               stats.uptime_seconds()));
  Row("requests now", absl::StrFormat("%d open, %d running, %d waiting", stats.streams_open(),
                                      stats.running(), stats.waiting()));
  Row("requests ended",
      absl::StrFormat(
          "%d by a stop token or string, %d by length, %d cancelled, %d by deadline, %d in error",
          stats.finished_stop(), stats.finished_length(), stats.finished_cancelled(),
          stats.finished_deadline(), stats.finished_error()));
  Row("prompt tokens",
      absl::StrFormat("%d computed, %d again after %d preemptions", stats.prompt_tokens(),
                      stats.recomputed_tokens(), stats.preemptions()));
  Row("generated tokens", stats.generated_tokens());
  Row("engine steps", stats.steps());
  PrintCache(model);
  Row("  in use",
      absl::StrFormat("%d of %d blocks, %s of %s", stats.blocks_used(), stats.blocks_total(),
                      FormatBytes(static_cast<double>(stats.cache_bytes_used())),
                      FormatBytes(static_cast<double>(stats.cache_bytes_total()))));
  return absl::OkStatus();
}

}  // namespace latentd
