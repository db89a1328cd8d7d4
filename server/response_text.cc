#include "server/response_text.h"

#include <utility>

#include "base/status_macros.h"

namespace latentd {

ResponseText::ResponseText(const Tokenizer* tokenizer, const std::vector<int32_t>& prompt,
                           StopConditions stop)
    : stop_token_ids_(stop.token_ids.begin(), stop.token_ids.end()),
      include_stop_(stop.include_stop),
      min_tokens_(stop.min_tokens),
      decoder_(tokenizer, prompt, /*skip_special=*/true),
      filter_(std::move(stop.strings), stop.include_stop) {}

ResponseText::Delta ResponseText::Filter(std::string text) {
  if (num_tokens_ < min_tokens_) return {.text = std::move(text)};
  StopStringFilter::Result result = filter_.Push(text);
  stopped_ = result.stopped;
  return {.text = std::move(result.text),
          .stopped = result.stopped,
          .stop_string = std::move(result.matched)};
}

absl::StatusOr<ResponseText::Delta> ResponseText::Push(int32_t token) {
  if (stopped_) return Delta{.stopped = true};
  ++num_tokens_;
  if (!include_stop_ && stop_token_ids_.contains(token)) return Delta{};
  ASSIGN_OR_RETURN(std::string text, decoder_.Push(token));
  return Filter(std::move(text));
}

absl::StatusOr<ResponseText::Delta> ResponseText::Flush() {
  if (stopped_) return Delta{.stopped = true};
  ASSIGN_OR_RETURN(std::string text, decoder_.Flush());
  Delta delta = Filter(std::move(text));
  if (!delta.stopped) delta.text += filter_.Flush();
  return delta;
}

}  // namespace latentd
