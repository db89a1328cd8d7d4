#include <cstdio>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "server/latentctl/answer.h"
#include "server/latentctl/commands.h"
#include "server/latentctl/message_json.h"
#include "server/latentctl/request_flags.h"

namespace latentd {
namespace {

struct Options {
  std::string target, chat, system, tokens, id;
  std::optional<int64_t> logprobs;
  double timeout = 0;
  bool json = false;
};

absl::Status SetPrompt(const Options& options, const std::vector<std::string>& positional,
                       v1::GenerateRequest* request) {
  if (!options.chat.empty() + !options.tokens.empty() + !positional.empty() > 1 ||
      positional.size() > 1) {
    return absl::InvalidArgumentError("more than one prompt: give one TEXT, --chat or --tokens");
  }
  if (!options.system.empty() && options.chat.empty()) {
    return absl::InvalidArgumentError(
        "--system goes with --chat only: other prompts are taken as they are");
  }
  if (!options.chat.empty()) {
    const auto add = [&](const char* role, const std::string& content) {
      v1::ChatMessage* message = request->mutable_chat()->add_messages();
      message->set_role(role);
      message->set_content(content);
    };
    if (!options.system.empty()) add("system", options.system);
    add("user", TextOrInput(options.chat));
    return absl::OkStatus();
  }
  if (!options.tokens.empty()) {
    ASSIGN_OR_RETURN(const std::vector<int64_t> ids, ParseIds("--tokens", options.tokens));
    request->mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
    return absl::OkStatus();
  }
  if (positional.empty())
    return absl::InvalidArgumentError(
        "no prompt: give TEXT (- reads it from stdin), --chat or --tokens");
  request->set_text(TextOrInput(positional[0]));
  return absl::OkStatus();
}

// What --timeout did, in place of gRPC's "Deadline Exceeded".
absl::Status NameTheTimeout(absl::Status status, double timeout) {
  if (timeout == 0 || !absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(
      absl::StrCat("DEADLINE_EXCEEDED: not at its end after ", timeout,
                   " s; --timeout sets how long the request may take"));
}

// Why the tokens end: the server's word, or what the RPC's error says in its place.
v1::Finish::Reason ReasonOf(const Answer& answer) {
  if (answer.finish.reason() != v1::Finish::REASON_UNSPECIFIED) return answer.finish.reason();
  return absl::IsDeadlineExceeded(answer.status) ? v1::Finish::DEADLINE : v1::Finish::ERROR;
}

std::string ToJsonLine(const Answer& answer) {
  nlohmann::ordered_json json = {{"text", answer.text},
                                 {"token_ids", answer.token_ids},
                                 {"reason", v1::Finish::Reason_Name(ReasonOf(answer))}};
  if (!answer.status.ok()) json["error"] = answer.status.message();
  if (!answer.token_ids.empty()) json["ttft_ms"] = absl::ToDoubleMilliseconds(answer.first_token);
  if (answer.finish.reason() != v1::Finish::REASON_UNSPECIFIED) {
    json["prefill_tokens_per_s"] = answer.prefill_tokens_per_s();
    json["decode_tokens_per_s"] = answer.decode_tokens_per_s();
    json["finish"] = ToJson(answer.finish);
  }
  if (!answer.logprobs.empty()) {
    nlohmann::ordered_json& all = json["logprobs"] = nlohmann::ordered_json::array();
    for (const v1::TokenLogprobs& token : answer.logprobs) all.push_back(ToJson(token));
  }
  return JsonLine(json);
}

}  // namespace

absl::Status GenerateCommand(Arguments args) {
  Options options;
  RequestFlags request_flags;
  CommandLine flags(
      {.program = "latentctl generate",
       .summary = "Streams the continuation of TEXT, or the answer to a question.",
       .example = "latentctl generate --max-tokens 50 --temperature 0 \"The capital of France is\"",
       .positional = "[TEXT | -]"});
  AddTargetFlag(&flags, &options.target);
  flags.Add("chat", &options.chat, "TEXT",
            "a question (- reads it from stdin), put through the model's chat template");
  flags.Add("system", &options.system, "TEXT", "a system message before --chat");
  flags.Add("tokens", &options.tokens, "IDS", "a prompt of token ids: 12,7,99");
  flags.Add("id", &options.id, "ID",
            "names the request in the server's log, at its --log-level debug");
  flags.Add("timeout", &options.timeout, "S", "deadline of the request in seconds; 0: none",
            {.min = 0});
  flags.Add("json", &options.json,
            "print one JSON object at the end, also after an error, instead of the text");
  flags.Add("logprobs", &options.logprobs, "K",
            "log probabilities of the K likeliest tokens; needs --json", RequestFlags::kInt32);
  request_flags.AddTo(&flags);
  flags.ParseOrExit(args);

  if (options.logprobs && !options.json) {
    return absl::InvalidArgumentError("--logprobs needs --json, which prints them");
  }
  v1::GenerateRequest request;
  RETURN_IF_ERROR(SetPrompt(options, flags.positional(), &request));
  if (options.logprobs) request.set_logprobs(static_cast<int32_t>(*options.logprobs));
  request.set_request_id(options.id);
  request_flags.Apply(&request);
  Client client(options.target);
  const absl::Time deadline =
      options.timeout > 0 ? absl::Now() + absl::Seconds(options.timeout) : absl::InfiniteFuture();
  Answer answer = options.json ? Ask(&client, request, deadline, [](absl::string_view) {})
                               : AskAndPrint(&client, request, deadline);
  answer.status = NameTheTimeout(answer.status, options.timeout);
  if (options.json) {
    std::fputs(ToJsonLine(answer).c_str(), stdout);
  } else if (answer.status.ok()) {
    std::fprintf(stderr, "[%s]\n", Summary(answer).c_str());
  }
  return answer.status;
}

}  // namespace latentd
