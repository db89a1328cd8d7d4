#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "latentd/v1/generation.pb.h"

namespace latentd {

// A connection to a latentd. Thread-safe; each call waits for its answer. A
// string that is not UTF-8 is INVALID_ARGUMENT and is not sent.
class Client {
 public:
  // `target` is HOST:PORT. Connects at the first call.
  explicit Client(const std::string& target);
  ~Client();

  // Calls `on_message` for each message as it comes, on the calling thread; false cancels the
  // request. The status is the RPC's: CANCELLED after such a cancel.
  absl::Status Generate(const v1::GenerateRequest& request, absl::Time deadline,
                        const std::function<bool(const v1::GenerateResponse&)>& on_message);

  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request);
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request);
  absl::StatusOr<v1::GetModelResponse> GetModel();
  absl::StatusOr<v1::GetStatsResponse> GetStats();

 private:
  class Stub;
  const std::unique_ptr<Stub> stub_;
};

}  // namespace latentd
