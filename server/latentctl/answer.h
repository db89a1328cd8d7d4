#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/latentctl/client.h"

namespace latentd {

// One generation as the client saw it: after an error, what had come until then.
struct Answer {
  absl::Status status;  // the RPC's
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<v1::TokenLogprobs> logprobs;
  v1::Finish finish;           // the server's last word; empty if an error came before it
  absl::Duration first_token;  // from sending to the first token; 0 before it

  // From the server's own clock; 0 where there is nothing to divide.
  double prefill_tokens_per_s() const;
  double decode_tokens_per_s() const;
};

// Generates, showing each piece of text as it comes.
Answer Ask(Client* client, const v1::GenerateRequest& request, absl::Time deadline,
           const std::function<void(absl::string_view)>& show,
           Cancellation* cancellation = nullptr);

// The same with stdout as the place to show it, its last line ended, also before an error.
Answer AskAndPrint(Client* client, const v1::GenerateRequest& request, absl::Time deadline,
                   Cancellation* cancellation = nullptr);

// "31 tokens, 118.2 tokens/s; prompt 45 tokens, 460.1 tokens/s, first after 98 ms; cache 0.63 MiB,
// uncompressed 1.72 MiB (2.7x)"
std::string Summary(const Answer& answer);

}  // namespace latentd
