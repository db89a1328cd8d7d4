#include "server/latentctl/request_flags.h"

#include <iostream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace latentd {

void RequestFlags::AddTo(CommandLine* flags) {
  flags->Add("max-tokens", &max_tokens_, "N",
             "most tokens to generate; without it, what the context holds", kInt32);
  flags->Add("min-tokens", &min_tokens_, "N", "no stop before that many tokens", kInt32);
  flags->Add("temperature", &temperature_, "T",
             "0 takes the likeliest token; without it, the model's own");
  flags->Add("top-k", &top_k_, "K", "draw from the K likeliest tokens; without it, the model's own",
             kInt32);
  flags->Add("top-p", &top_p_, "P",
             "draw from the likeliest tokens of that mass; without it, the model's own");
  flags->Add("min-p", &min_p_, "P",
             "draw from tokens of at least that share of the likeliest one's probability");
  flags->Add("seed", &seed_, "N", "equal seeds give equal answers; without it, a random one");
  flags->Add("repetition-penalty", &repetition_penalty_, "X", "over prompt and output; 1 is none");
  flags->Add("presence-penalty", &presence_penalty_, "X", "over the output; 0 is none");
  flags->Add("frequency-penalty", &frequency_penalty_, "X", "over the output; 0 is none");
  flags->Add("stop", &stop_, "TEXT", "end before this text; may be given many times");
  flags->Add("ignore-eos", &ignore_eos_, "go on after the end-of-sequence token");
  flags->Add("include-stop", &include_stop_, "keep the text that ended the generation");
}

void RequestFlags::Apply(v1::GenerateRequest* request) const {
  v1::Sampling* sampling = request->mutable_sampling();
  if (max_tokens_) request->set_max_tokens(static_cast<int32_t>(*max_tokens_));
  if (min_tokens_) request->set_min_tokens(static_cast<int32_t>(*min_tokens_));
  if (temperature_) sampling->set_temperature(static_cast<float>(*temperature_));
  if (top_k_) sampling->set_top_k(static_cast<int32_t>(*top_k_));
  if (top_p_) sampling->set_top_p(static_cast<float>(*top_p_));
  if (min_p_) sampling->set_min_p(static_cast<float>(*min_p_));
  if (seed_) sampling->set_seed(static_cast<uint64_t>(*seed_));
  if (repetition_penalty_)
    sampling->set_repetition_penalty(static_cast<float>(*repetition_penalty_));
  if (presence_penalty_) sampling->set_presence_penalty(static_cast<float>(*presence_penalty_));
  if (frequency_penalty_) sampling->set_frequency_penalty(static_cast<float>(*frequency_penalty_));
  for (const std::string& text : stop_) request->add_stop(text);
  request->set_ignore_eos(ignore_eos_);
  request->set_include_stop(include_stop_);
}

void AddTargetFlag(CommandLine* flags, std::string* target) {
  *target = "127.0.0.1:50051";
  flags->Add("target", target, "HOST:PORT", "the server");
}

std::string TextOrInput(const std::string& text) {
  if (text != "-") return text;
  return std::string(std::istreambuf_iterator<char>(std::cin), {});
}

absl::StatusOr<std::vector<int64_t>> ParseIds(absl::string_view flag, absl::string_view text) {
  std::vector<int64_t> ids;
  for (absl::string_view part : absl::StrSplit(text, absl::ByAnyChar(", "), absl::SkipEmpty())) {
    int64_t id;
    if (!absl::SimpleAtoi(part, &id)) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": \"", part, "\" is no token id"));
    }
    ids.push_back(id);
  }
  return ids;
}

}  // namespace latentd
