#pragma once

#include <vector>

#include "prometheus/metric_family.h"

namespace latentd {

// Appends what the kernel counts for this process under the names that every Prometheus client
// uses: process_cpu_seconds_total, process_resident_memory_bytes, process_virtual_memory_bytes,
// process_open_fds, process_start_time_seconds. Those that cannot be read are left out.
void AppendProcessMetrics(std::vector<prometheus::MetricFamily>* families);

}  // namespace latentd
