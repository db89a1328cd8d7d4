#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/config.h"

namespace latentd {

// All of latentd but its process: the metrics page, the model and its text, the serve loop, the
// gRPC server. Starts in that order and ends from the left (server) to the right (engine). Owned by
// main().
class Daemon {
 public:
  // Loads the model, warms it up, listens. The error of a bad start names the flag to change.
  // `on_engine_dead` comes once at most, from another thread, and must not block.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const ServerConfig& config,
                                                       std::function<void()> on_engine_dead);
  ~Daemon();

  // Refuses new requests; returns once the running ones are over, those that are left at `deadline`
  // cancelled.
  void Drain(absl::Time deadline);

  // Cancels every request now; a Drain that waits returns within the next step. From any thread.
  void EndRequests();

 private:
  class Parts;
  explicit Daemon(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace latentd
