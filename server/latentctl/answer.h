#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/latentctl/client.h"

namespace latentd {

// One generation as the client saw it.
struct Answer {
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<v1::TokenLogprobs> logprobs;
  v1::Finish finish;
  absl::Duration first_token;  // from sending to the first token

  // From the server's own clock; 0 where there is nothing to divide.
  double prefill_tokens_per_s() const;
  double decode_tokens_per_s() const;
};

// Generates, showing each piece of text as it comes. Once go_on says no, the request is cancelled.
absl::StatusOr<Answer> Ask(Client* client, const v1::GenerateRequest& request, absl::Time deadline,
                           const std::function<void(absl::string_view)>& show,
                           const std::function<bool()>& go_on = nullptr);

// The same with stdout as the place to show it, its last line ended, also before an error.
absl::StatusOr<Answer> AskAndPrint(Client* client, const v1::GenerateRequest& request,
                                   absl::Time deadline,
                                   const std::function<bool()>& go_on = nullptr);

// "31 tokens, 118.2 tokens/s; prompt 45 tokens, 460.1 tokens/s, first after 98 ms; cache 0.63 MiB,
// uncompressed 1.72 MiB (2.7x)"
std::string Summary(const Answer& answer);

}  // namespace latentd
