#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "scheduler/serve_loop.h"
#include "server/served_model.h"

namespace prometheus {
class Registry;
}  // namespace prometheus

namespace latentd {

// The gRPC side of latentd: Generation, health and reflection on one port, and the text workers
// behind them. Starts as NOT_SERVING. Thread-safe.
class Server {
 public:
  struct Options {
    std::string listen = "127.0.0.1:0";         // HOST:PORT
    int text_workers = 2;                       // 2 or more
    size_t max_outbox_bytes = size_t{4} << 20;  // of text that may wait for one slow client
  };

  // `loop`, `registry` and `clock` are borrowed. INVALID_ARGUMENT names --listen when it cannot
  // listen there.
  static absl::StatusOr<std::unique_ptr<Server>> Start(Options options, const ServedModel& model,
                                                       const SchedulerConfig& limits,
                                                       ServeLoop* loop,
                                                       prometheus::Registry* registry,
                                                       Clock* clock);
  ~Server();  // as Stop(now)

  const std::string& address() const;  // HOST:PORT, the port in use

  void SetReady();  // health: SERVING
  bool ready() const;
  void RefuseNew();  // health: NOT_SERVING; new requests get UNAVAILABLE
  int streams_open() const;

  // Brings gauges up to date that nobody sets as things happen; before a scrape.
  void RefreshMetrics();

  // No new calls; cancels those that are still open at `deadline`, and returns when all are over.
  void Stop(absl::Time deadline);

 private:
  class Parts;
  explicit Server(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace latentd
