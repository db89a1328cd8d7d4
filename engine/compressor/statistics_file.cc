#include "engine/compressor/statistics_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/mapped_file.h"
#include "base/message.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "engine/checkpoint/atomic_file.h"

namespace latentd {
namespace {

// Calls body(numbers) for every vector of the sums, in the file's order.
template <typename Sums, typename Body>
void ForNumbers(Sums& sums, const Body& body) {
  for (auto& plane : sums.planes) {
    body(plane.output);
    body(plane.output_square.values);
    body(plane.gradient_square.values);
    body(plane.weight_gradient.values);
  }
}

uint64_t HashOf(const StatisticsSums& sums) {
  uint64_t hash = RandomBits(sums.windows, sums.layers);
  ForNumbers(sums, [&](const std::vector<double>& numbers) {
    for (const double value : numbers) hash = RandomBits(hash, std::bit_cast<uint64_t>(value));
  });
  return hash;
}

// Of a StatisticsOptions::Gradients as the file has it.
const char* NameOf(int64_t gradients) {
  constexpr const char* kNames[] = {"none", "of drawn labels", "of the text"};
  return gradients >= 0 && gradients < std::ssize(kNames) ? kNames[gradients] : "unknown";
}

uint64_t HashOf(const CalibrationWindows& windows) {
  uint64_t hash = windows.size();
  for (const std::vector<int32_t>& window : windows) {
    hash = RandomBits(hash, window.size());
    for (const int32_t token : window) hash = RandomBits(hash, static_cast<uint32_t>(token));
  }
  return hash;
}

}  // namespace

StatisticsSums EmptySums(const ModelConfig& config, const StatisticsOptions& options) {
  const int kv_dim = config.kv_dim();
  const bool sampled = options.gradients == StatisticsOptions::Gradients::kSampled;
  const bool text = options.gradients == StatisticsOptions::Gradients::kText;
  const PlaneSums plane{.output = std::vector<double>(kv_dim),
                        .output_square = Matrix(kv_dim, kv_dim),
                        .gradient_square = sampled ? Matrix(kv_dim, kv_dim) : Matrix(),
                        .weight_gradient = text ? Matrix(kv_dim, config.hidden_dim) : Matrix()};
  return {.planes = std::vector<PlaneSums>(2 * config.num_layers, plane)};
}

StatisticsFile::StatisticsFile(std::string path, const Checkpoint& checkpoint,
                               const CalibrationWindows& windows, const StatisticsOptions& options)
    : path_(std::move(path)),
      own_{.magic = {'L', 'T', 'D', 'S', 'T', 'A', 'T', '2'},
           .all_windows = std::ssize(windows),
           .text = HashOf(windows),
           .sinks = options.sinks,
           .gradients = static_cast<int64_t>(options.gradients),
           .seed = options.seed} {
  static_assert(sizeof(Header) == 112);
  tokens_.push_back(0);
  for (const std::vector<int32_t>& window : windows) {
    tokens_.push_back(tokens_.back() + std::ssize(window) - options.sinks);
  }
  std::memcpy(own_.fingerprint, Fingerprint(checkpoint).data(), sizeof(own_.fingerprint));
}

absl::Status StatisticsFile::Write(const StatisticsSums& sums) const {
  Header header = own_;
  header.windows = sums.windows;
  header.layers = sums.layers;
  header.tokens = sums.tokens;
  header.numbers = HashOf(sums);
  ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFile> file, AtomicFile::Create(path_));
  absl::Status status = file->Write(&header, sizeof(header));
  ForNumbers(sums, [&](const std::vector<double>& numbers) {
    if (status.ok()) status = file->Write(numbers.data(), numbers.size() * sizeof(double));
  });
  RETURN_IF_ERROR(status);
  return file->Publish();
}

absl::Status StatisticsFile::CheckSame(const Header& found) const {
  const auto other = [&](const char* what, const auto& its, const auto& ours) {
    return absl::FailedPreconditionError(Message(path_, " holds the work of another run: its ",
                                                 what, " ", its, ", now ", ours,
                                                 "; remove it or name another"));
  };
  const std::string_view its_model(found.fingerprint, sizeof(found.fingerprint)),
      model(own_.fingerprint, sizeof(own_.fingerprint));
  if (its_model != model) return other("model is", its_model, model);
  if (found.all_windows != own_.all_windows) {
    return other("calibration windows are", found.all_windows, own_.all_windows);
  }
  if (found.text != own_.text) return other("calibration text has the hash", found.text, own_.text);
  if (found.sinks != own_.sinks) return other("sinks are", found.sinks, own_.sinks);
  if (found.gradients != own_.gradients) {
    return other("gradients are", NameOf(found.gradients), NameOf(own_.gradients));
  }
  if (found.seed != own_.seed) return other("seed is", found.seed, own_.seed);
  return absl::OkStatus();
}

absl::Status StatisticsFile::Damaged() const {
  return absl::FailedPreconditionError(absl::StrCat(
      path_, " is no work of an earlier run, or is damaged; remove it or name another"));
}

absl::Status StatisticsFile::Read(StatisticsSums* sums) const {
  const auto opened = MappedFile::Open(path_);
  if (absl::IsNotFound(opened.status())) return absl::OkStatus();
  RETURN_IF_ERROR(opened.status());
  absl::Span<const std::byte> bytes = (*opened)->bytes();
  Header found;
  if (bytes.size() < sizeof(found)) return Damaged();
  std::memcpy(&found, bytes.data(), sizeof(found));
  if (std::memcmp(found.magic, own_.magic, sizeof(own_.magic)) != 0) return Damaged();
  RETURN_IF_ERROR(CheckSame(found));
  bytes.remove_prefix(sizeof(found));
  bool whole = found.windows >= 0 && found.windows < std::ssize(tokens_) &&
               found.tokens == tokens_[found.windows] && found.layers >= 0 &&
               2 * found.layers < std::ssize(sums->planes);
  ForNumbers(*sums, [&](std::vector<double>& numbers) {
    const size_t size = numbers.size() * sizeof(double);
    whole = whole && bytes.size() >= size;
    if (!whole) return;
    std::copy_n(bytes.data(), size, std::as_writable_bytes(std::span(numbers)).data());
    bytes.remove_prefix(size);
  });
  sums->windows = found.windows;
  sums->layers = found.layers;
  sums->tokens = found.tokens;
  if (!whole || !bytes.empty() || HashOf(*sums) != found.numbers) return Damaged();
  return absl::OkStatus();
}

}  // namespace latentd
