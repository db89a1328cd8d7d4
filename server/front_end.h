#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "scheduler/scheduler_config.h"
#include "scheduler/serve_loop.h"
#include "server/admission.h"
#include "server/front_end_metrics.h"
#include "server/served_model.h"
#include "server/text_workers.h"

namespace latentd {

// What the RPCs of the service share. The pointers are borrowed.
struct FrontEnd {
  // Constant.
  ServedModel model;
  SchedulerConfig limits;
  ServeLoop* loop = nullptr;
  TextWorkers* workers = nullptr;
  Admission* admission = nullptr;
  FrontEndMetrics* metrics = nullptr;
  Clock* clock = nullptr;
  uint64_t seed = 0;  // of the seeds that requests do not bring
  size_t max_outbox_bytes =
      size_t{4} << 20;  // that may wait for one client; 4 MiB are 100,000 tokens and more
  absl::Time started;

  std::atomic<uint64_t> next_request{0};
  std::atomic<bool> ready{false};
};

}  // namespace latentd
