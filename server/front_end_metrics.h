#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/served_model.h"

namespace prometheus {
class Registry;
}  // namespace prometheus

namespace latentd {

// The front end's families in a Prometheus registry: RPCs, streams, text work, and the facts about
// model and cache. The scheduler's are in SchedulerMetrics. Thread-safe.
class FrontEndMetrics {
 public:
  // `registry` outlives this object.
  FrontEndMetrics(prometheus::Registry& registry, const ServedModel& model);
  ~FrontEndMetrics();

  void OnRpcStarted(absl::string_view method);
  // `code` is a gRPC status code.
  void OnRpcDone(absl::string_view method, int code, absl::Duration duration);

  // A Generate ended: once for each that was started. `reason`: stop, length, ..., or refused.
  void OnRequestDone(int code, absl::string_view reason);
  // One of those was refused. `reason`: invalid, queue_full, duplicate_id, draining, engine_dead,
  // error.
  void OnRejected(absl::string_view reason);
  void OnStreamOpened();  // a Generate was let in; each is closed once
  void OnStreamClosed();
  void SetCacheBytes(int64_t used, int64_t total);
  void OnTokenized(absl::Duration duration);
  void OnBackpressure(absl::Duration waited);      // tokens waited for the client that long
  void OnStreamDropped(absl::string_view reason);  // slow_reader, not_read

 private:
  struct Families;
  const std::unique_ptr<Families> families_;
};

// "OK", "INVALID_ARGUMENT", ... of a gRPC status code.
std::string GrpcCodeName(int code);

}  // namespace latentd
