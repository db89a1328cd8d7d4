#include "engine/compressor/statistics.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "engine/compressor/decoder_gradient.h"
#include "engine/compressor/dense_algebra.h"
#include "engine/compressor/statistics_file.h"

namespace latentd {
namespace {

using Gradients = StatisticsOptions::Gradients;

constexpr absl::Duration kSaveEvery = absl::Seconds(20);
constexpr int kWorkPerSave = 20;  // saving takes at most one part in so many of the time

absl::Status Check(const ModelConfig& config, const CalibrationWindows& windows, int sinks) {
  if (windows.empty()) return absl::InvalidArgumentError("there are no calibration windows");
  const int64_t least = std::max(2, sinks + 1);
  for (const std::vector<int32_t>& window : windows) {
    const int64_t tokens = static_cast<int64_t>(window.size());
    if (tokens < least || tokens > config.max_context) {
      return absl::InvalidArgumentError(
          absl::StrCat("a calibration window has ", tokens, " tokens, allowed: ", least, " (with ",
                       sinks, " sinks) to the model's ", config.max_context));
    }
    for (const int32_t token : window) {
      if (token < 0 || token >= config.vocab_size) {
        return absl::InvalidArgumentError(absl::StrCat("a calibration window has token ", token,
                                                       ", the model has ", config.vocab_size));
      }
    }
  }
  return absl::OkStatus();
}

// Squares of the window's whole gradient by a plane's weight, G = sum of g x^T over all its tokens.
void AddWeightGradient(const LayerProjections& layer, const float* gradient, DenseAlgebra& algebra,
                       Matrix* squares) {
  std::vector<float> weight(squares->values.size());
  algebra.WeightGradient(gradient, squares->rows, layer.input, squares->cols, layer.tokens,
                         weight.data());
  const int64_t size = std::ssize(weight);
  ThreadPool& pool = algebra.pool();
  pool.ParallelFor(size, pool.Grain(size), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) squares->values[i] += double{weight[i]} * weight[i];
  });
}

// Adds what a layer's window says of K and V but for its first tokens, the sinks.
void AddLayer(const LayerProjections& layer, const StatisticsOptions& options,
              DenseAlgebra& algebra, absl::Span<PlaneSums> sums) {
  const LayerProjections::Plane* planes[] = {&layer.k, &layer.v};
  const int64_t dims = std::ssize(sums[0].output);
  const int64_t first = options.sinks * dims, rows = layer.tokens - options.sinks;
  std::vector<Moment> moments;
  for (int p = 0; p < 2; ++p) {
    const float* output = planes[p]->output + first;
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t i = 0; i < dims; ++i) sums[p].output[i] += output[t * dims + i];
    }
    moments.push_back({output, rows, &sums[p].output_square});
    if (options.gradients == Gradients::kSampled) {
      moments.push_back({planes[p]->gradient + first, rows, &sums[p].gradient_square});
    } else if (options.gradients == Gradients::kText) {
      AddWeightGradient(layer, planes[p]->gradient, algebra, &sums[p].weight_gradient);
    }
  }
  algebra.AddMoments(moments);
}

// The mean of a sum of squares over `tokens` tokens.
Matrix Mean(Matrix sum, int64_t tokens) {
  MirrorUpperTriangle(&sum);
  for (double& value : sum.values) value /= static_cast<double>(tokens);
  return sum;
}

PlaneStatistics StatisticsOf(PlaneSums sums, int64_t tokens, int64_t windows) {
  PlaneStatistics plane{.second_moment = Mean(std::move(sums.output_square), tokens),
                        .mean = std::move(sums.output),
                        .fisher = Mean(std::move(sums.gradient_square), tokens)};
  for (double& value : plane.mean) value /= static_cast<double>(tokens);
  for (const double square : sums.weight_gradient.values) {
    plane.weight_fisher_sum += square;
    plane.weight_fisher_rms += std::sqrt(square / windows) / sums.weight_gradient.values.size();
  }
  return plane;
}

// Keeps the sums in a file now and then.
class Saver {
 public:
  explicit Saver(const StatisticsFile& file) : file_(file), last_(absl::Now()) {}

  bool due() const { return absl::Now() - last_ >= std::max(kSaveEvery, kWorkPerSave * took_); }

  absl::Status Save(const StatisticsSums& sums) {
    const absl::Time start = absl::Now();
    RETURN_IF_ERROR(file_.Write(sums));
    last_ = absl::Now();
    took_ = last_ - start;
    return absl::OkStatus();
  }

 private:
  const StatisticsFile& file_;
  absl::Time last_;
  absl::Duration took_;
};

absl::Status AddWindow(const std::vector<int32_t>& window, const StatisticsOptions& options,
                       DenseAlgebra& algebra, DecoderGradient& decoder, const Progress& progress,
                       StatisticsSums* sums) {
  int64_t walked = 0;
  const auto add = [&](int layer, const LayerProjections& projections) {
    if (walked++ < sums->layers) return absl::OkStatus();
    AddLayer(projections, options, algebra, absl::MakeSpan(sums->planes).subspan(2 * layer, 2));
    sums->layers = walked;
    return algebra.status();
  };
  if (options.gradients == Gradients::kNone) {
    RETURN_IF_ERROR(decoder.Forward(window, add, progress));
  } else {
    std::optional<uint64_t> seed;
    if (options.gradients == Gradients::kSampled) seed = RandomBits(options.seed, sums->windows);
    RETURN_IF_ERROR(decoder.Backward(window, seed, add, progress).status());
  }
  sums->windows += 1;
  sums->layers = 0;
  sums->tokens += static_cast<int64_t>(window.size()) - options.sinks;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<LayerStatistics>> MeasureStatistics(const Checkpoint& checkpoint,
                                                               const CalibrationWindows& windows,
                                                               const StatisticsOptions& options,
                                                               DenseAlgebra& algebra,
                                                               const Progress& progress) {
  RETURN_IF_ERROR(Check(checkpoint.config(), windows, options.sinks));
  StatisticsSums sums = EmptySums(checkpoint.config(), options);
  std::optional<StatisticsFile> file;
  std::optional<Saver> saver;
  if (!options.resume_path.empty()) {
    file.emplace(options.resume_path, checkpoint, windows, options);
    RETURN_IF_ERROR(file->Read(&sums));
    saver.emplace(*file);
  }
  size_t longest = 0;
  for (const std::vector<int32_t>& window : windows) longest = std::max(longest, window.size());
  const int64_t count = static_cast<int64_t>(windows.size());
  ASSIGN_OR_RETURN(const std::unique_ptr<DecoderGradient> decoder,
                   DecoderGradient::Create(checkpoint, static_cast<int>(longest), algebra));
  bool ended = false;
  const Progress tell = [&](double share) {
    absl::Status status = progress(share);
    ended = !status.ok();
    return status;
  };
  RETURN_IF_ERROR(tell(static_cast<double>(sums.windows) / count));  // where it begins
  while (sums.windows < count) {
    const int64_t window = sums.windows;
    // The last call of a window is made below, when its sums are whole.
    const Progress within = [&](double share) {
      return share < 1 ? tell((window + share) / count) : absl::OkStatus();
    };
    absl::Status status = AddWindow(windows[window], options, algebra, *decoder, within, &sums);
    if (status.ok()) status = tell(static_cast<double>(sums.windows) / count);
    absl::Status saved;
    // Work that ends within its first window has nothing that is worth a file.
    if (saver.has_value() &&
        (ended ? sums.windows > 0 : status.ok() && (saver->due() || sums.windows == count))) {
      saved = saver->Save(sums);
    }
    RETURN_IF_ERROR(status);
    RETURN_IF_ERROR(saved);
  }
  std::vector<LayerStatistics> layers;
  layers.reserve(checkpoint.config().num_layers);
  for (int l = 0; l < checkpoint.config().num_layers; ++l) {
    layers.push_back({.k = StatisticsOf(std::move(sums.planes[2 * l]), sums.tokens, count),
                      .v = StatisticsOf(std::move(sums.planes[2 * l + 1]), sums.tokens, count)});
  }
  return layers;
}

}  // namespace latentd
