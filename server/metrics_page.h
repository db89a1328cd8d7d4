#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace prometheus {
class Registry;
}  // namespace prometheus

namespace latentd {

// An HTTP page on threads of its own: /metrics (Prometheus text), /livez and /readyz (200, or 503
// with the reason). None of them waits for a step of the engine.
class MetricsPage {
 public:
  // Each is called for every request of its path, from several threads; OK means 200.
  struct Probes {
    std::function<void()> before_metrics = [] {};
    std::function<absl::Status()> live;
    std::function<absl::Status()> ready;
  };

  // `registry` is borrowed. INVALID_ARGUMENT names --metrics-listen when it cannot listen on
  // HOST:PORT.
  static absl::StatusOr<std::unique_ptr<MetricsPage>> Start(const std::string& listen,
                                                            prometheus::Registry* registry,
                                                            Probes probes);
  ~MetricsPage();

  const std::string& address() const;  // HOST:PORT, the port in use

 private:
  struct Parts;
  explicit MetricsPage(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace latentd
