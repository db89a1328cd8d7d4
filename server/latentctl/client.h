#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "latentd/v1/generation.pb.h"

namespace grpc {
class ClientContext;
}

namespace latentd {

// Ends one Client::Generate from any thread: before it, during it, or (without effect) after it.
class Cancellation {
 public:
  void Cancel();
  bool cancelled() const;  // whether Cancel was called

 private:
  friend class Client;
  void Watch(grpc::ClientContext* context);  // null: over

  mutable Mutex mu_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

// A connection to a latentd. Thread-safe; each call waits for its answer. A
// string that is not UTF-8 is INVALID_ARGUMENT and is not sent.
class Client {
 public:
  // `target` is HOST:PORT. Connects at the first call.
  explicit Client(const std::string& target);
  ~Client();

  // Calls `on_message` for each message as it comes, on the calling thread; false cancels the
  // request, and so does `cancellation`. The status is the RPC's: CANCELLED after such a cancel.
  absl::Status Generate(const v1::GenerateRequest& request, absl::Time deadline,
                        const std::function<bool(const v1::GenerateResponse&)>& on_message,
                        Cancellation* cancellation = nullptr);

  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request);
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request);
  absl::StatusOr<v1::GetModelResponse> GetModel();
  absl::StatusOr<v1::GetStatsResponse> GetStats();

 private:
  class Stub;
  const std::unique_ptr<Stub> stub_;
};

}  // namespace latentd
