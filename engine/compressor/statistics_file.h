#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/compressor/calibration.h"
#include "engine/compressor/matrix.h"
#include "engine/compressor/statistics.h"

namespace latentd {

// Sums over the tokens of the windows so far but their first `sinks` ones, whose means are a
// PlaneStatistics. Of squares only the upper triangle counts.
struct PlaneSums {
  std::vector<double> output;  // y [kv_dim]
  Matrix output_square;        // y y^T
  Matrix gradient_square;      // g g^T; Gradients::kSampled
  Matrix weight_gradient;      // over windows, of G^2 for each entry [kv_dim, hidden]; kText
};

struct StatisticsSums {
  int64_t windows = 0;  // done
  int64_t layers = 0;   // of the next window that are in the sums already, in the order of the walk
  int64_t tokens = 0;
  std::vector<PlaneSums> planes;  // K of layer 0, V of layer 0, K of layer 1, ...
};

// Zeros of the shapes that `options` asks for.
StatisticsSums EmptySums(const ModelConfig& config, const StatisticsOptions& options);

// The file that keeps the work so far, in the machine's byte order:
//
//   [0, 8)      "LTDSTAT2"
//   [8, 40)     fingerprint of the model, 32 hex digits
//   [40, 80)    five int64: number of all windows, hash of them, sinks, gradients, seed
//   [80, 112)   four int64: windows done, layers of the next one, tokens, hash of the rest
//   [112, ...)  the numbers as float64: each plane's members in order, matrices by rows
class StatisticsFile {
 public:
  StatisticsFile(std::string path, const Checkpoint& checkpoint, const CalibrationWindows& windows,
                 const StatisticsOptions& options);

  // Writes the file whole or not at all.
  absl::Status Write(const StatisticsSums& sums) const;

  // Fills `sums`, of the shapes that the options ask for; leaves them alone when there is no file.
  // FAILED_PRECONDITION when it is damaged or belongs to another model, text or option, and says
  // which.
  absl::Status Read(StatisticsSums* sums) const;

 private:
  struct Header {
    char magic[8];
    char fingerprint[32];
    int64_t all_windows;
    uint64_t text;
    int64_t sinks;
    int64_t gradients;
    uint64_t seed;
    int64_t windows;
    int64_t layers;
    int64_t tokens;
    uint64_t numbers;
  };

  absl::Status CheckSame(const Header& found) const;
  absl::Status Damaged() const;

  const std::string path_;
  std::vector<int64_t> tokens_;  // [windows + 1]: of the first windows but their sinks
  Header own_;                   // but for the last four
};

}  // namespace latentd
