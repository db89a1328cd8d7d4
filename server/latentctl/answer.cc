#include "server/latentctl/answer.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/command_line.h"

namespace latentd {

double Answer::prefill_tokens_per_s() const {
  const double seconds = finish.timings().prefill_seconds();
  return seconds > 0 ? (finish.usage().prompt_tokens() - finish.usage().cached_tokens()) / seconds
                     : 0;
}

double Answer::decode_tokens_per_s() const {
  const double seconds = finish.timings().decode_seconds();
  return seconds > 0 ? (finish.usage().generated_tokens() - 1) / seconds : 0;
}

Answer Ask(Client* client, const v1::GenerateRequest& request, absl::Time deadline,
           const std::function<void(absl::string_view)>& show, Cancellation* cancellation) {
  Answer answer;
  const absl::Time sent = absl::Now();
  const auto on_message = [&](const v1::GenerateResponse& message) {
    if (answer.token_ids.empty() && !message.token_ids().empty())
      answer.first_token = absl::Now() - sent;
    answer.text += message.text();
    answer.token_ids.insert(answer.token_ids.end(), message.token_ids().begin(),
                            message.token_ids().end());
    answer.logprobs.insert(answer.logprobs.end(), message.logprobs().begin(),
                           message.logprobs().end());
    if (message.has_finish()) answer.finish = message.finish();
    if (!message.text().empty()) show(message.text());
    return true;
  };
  answer.status = client->Generate(request, deadline, on_message, cancellation);
  return answer;
}

Answer AskAndPrint(Client* client, const v1::GenerateRequest& request, absl::Time deadline,
                   Cancellation* cancellation) {
  const auto print = [&](absl::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  Answer answer = Ask(client, request, deadline, print, cancellation);
  if (!answer.text.empty() || answer.status.ok()) std::puts("");
  std::fflush(stdout);
  return answer;
}

std::string Summary(const Answer& answer) {
  const v1::Usage& usage = answer.finish.usage();
  std::string text = absl::StrFormat(
      "%d tokens, %.1f tokens/s; prompt %d tokens, %.1f tokens/s, first after %.0f ms",
      usage.generated_tokens(), answer.decode_tokens_per_s(), usage.prompt_tokens(),
      answer.prefill_tokens_per_s(), absl::ToDoubleMilliseconds(answer.first_token));
  if (usage.cache_bytes() > 0) {
    const auto bytes = static_cast<double>(usage.cache_bytes());
    const auto full = static_cast<double>(usage.full_cache_bytes());
    absl::StrAppend(&text, "; cache ", FormatBytes(bytes), ", uncompressed ", FormatBytes(full),
                    absl::StrFormat(" (%.2fx)", full / bytes));
  }
  return text;
}

}  // namespace latentd
