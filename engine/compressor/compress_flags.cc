#include "engine/compressor/compress_flags.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

struct Preset {
  const char* name;
  double ratio;
};
constexpr Preset kPresets[] = {{"quality", 4}, {"balanced", 5.3}, {"small", 7.7}};

const std::vector<std::string>& MixedFlags() {
  static const std::vector<std::string> flags = {"ratio", "bytes-per-token", "bit-widths",
                                                 "block", "own-page",        "k-share"};
  return flags;
}
const std::vector<std::string>& PaluFlags() {
  static const std::vector<std::string> flags = {"rate", "bits", "allocate", "k-dims", "hadamard"};
  return flags;
}

absl::StatusOr<double> RatioOf(const std::string& preset) {
  for (const Preset& known : kPresets) {
    if (preset == known.name) return known.ratio;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--preset is \"", preset, "\", allowed: quality, balanced, small"));
}

}  // namespace

CompressFlags::CompressFlags(CommandLine* flags) : flags_(flags) {
  flags->Add("model", &options_.model.model, "PATH", "Hugging Face folder or .gguf file");
  flags->Add("dummy-weights", &options_.model.dummy_weights,
             "random weights, for measuring: --model is a folder or file with a config.json alone");
  flags->Add("out", &options_.out, "FILE",
             "latents file to write or replace; its reports lie beside it");
  flags->Add("preset", &preset_, "NAME",
             "method mixed: quality (4 times smaller, perplexity + .1 % on SmolLM2-135M), balanced "
             "(5.3, + .5 %) or small (7.7, + 2 %)");
  flags->Add("calibration", &calibration_, "self|FILE",
             "text to calibrate on, files may be repeated; default: self, sampled from the model");
  flags->Add("windows", &options_.windows, "N", "calibration windows; two more measure the loss",
             {.min = 1, .max = 100000});
  flags->Add("window", &options_.window_tokens, "N",
             "tokens of a calibration window; 0: 1024, or the model's context if that is less",
             {.min = 0});
  flags->Add("seed", &seed_, "N", "of the sampled text and labels", {.min = 0});
  flags->Add("statistics", &options_.statistics, "FILE",
             "keep what was measured on the text here, and take it from here when it is there: for "
             "several caches of one model");
  flags->Add("group", &options_.group, "all|N",
             "KV heads that share a latent; default: the largest divisor <= 4, or all");
  flags->Add("method", &method_, "NAME",
             "mixed: weighted by the loss, bits by one budget; palu: arXiv 2407.21118");
  flags->Add("sinks", &sinks_, "N",
             "first tokens of a sequence kept exact; default: 4, with palu 0", {.min = 0});

  flags->Add("ratio", &ratio_, "R",
             "mixed: uncompressed over stored bytes per token, at least; default: 5.3");
  flags->Add("bytes-per-token", &bytes_per_token_, "N",
             "mixed: of the whole cache, all scales counted, at most; instead of --ratio");
  flags->Add("bit-widths", &bit_widths_, "LIST", "mixed: what a value may take, of 8,4,3,2");
  flags->Add("block", &mixed_.widths.block_dims, "N",
             "mixed: dims that share a width, a multiple of 16");
  flags->Add(
      "own-page", &own_page_, "16|coded",
      "mixed: how a token reads the 64-token page that it lies in: in 16 bits, or from codes "
      "as the others");
  flags->Add("k-share", &k_share_, "X",
             "mixed: share of the bytes that keys take; default: what costs least");

  flags->Add("rate", &palu_.rate, "R", "palu: share of dims cut, as the paper counts");
  flags->Add("bits", &palu_.bits, "N",
             "palu: of a stored value: 4, 3, 2 (min-max), 8 (symmetric), 16, 32 (floating point)");
  flags->Add("allocate", &allocation_, "NAME",
             "palu: how layers share the dims: uniform, fisher-sum (the paper), fisher-rms (its "
             "code)");
  flags->Add("k-dims", &k_dims_, "X",
             "palu: share of the kept dims that keys get; default: as --allocate says");
  flags->Add("hadamard", &palu_.hadamard,
             "palu: rotate latents before coding; --no-hadamard leaves it out");

  flags->Add("device", &options_.model.device, "NAME", kDeviceHelp);
  flags->Add("threads", &options_.model.threads, "N", "threads; 0: one per core",
             {.min = 0, .max = 1024});
  flags->Add("json", &json_, "print the result as one JSON object");
}

absl::StatusOr<CompressOptions> CompressFlags::Options() const {
  RETURN_IF_ERROR(CheckTogether(method_));
  CompressOptions options = options_;
  options.seed = static_cast<uint64_t>(seed_);
  if (calibration_ != std::vector<std::string>{"self"}) options.calibration = calibration_;
  if (method_ == "palu") {
    ASSIGN_OR_RETURN(options.method, Palu());
  } else {
    ASSIGN_OR_RETURN(options.method, Mixed());
  }
  return options;
}

std::vector<std::string> CompressFlags::Given(const std::vector<std::string>& names) const {
  std::vector<std::string> given;
  for (const std::string& name : names) {
    if (flags_->IsSet(name)) given.push_back(absl::StrCat("--", name));
  }
  return given;
}

absl::Status CompressFlags::CheckTogether(const std::string& method) const {
  const auto wrong = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(parts...));
  };
  if (method != "mixed" && method != "palu") {
    return wrong("--method is \"", method, "\", allowed: mixed, palu");
  }
  const std::vector<std::string> mixed = Given(MixedFlags()), palu = Given(PaluFlags());
  if (flags_->IsSet("preset")) {
    std::vector<std::string> others = Given({"method", "sinks"});
    others.insert(others.end(), mixed.begin(), mixed.end());
    others.insert(others.end(), palu.begin(), palu.end());
    if (!others.empty()) {
      return wrong("--preset ", preset_, " says everything about the method: leave it out, or ",
                   absl::StrJoin(others, " and "));
    }
  }
  const std::vector<std::string>& strangers = method == "palu" ? mixed : palu;
  if (!strangers.empty()) {
    return wrong(absl::StrJoin(strangers, " and "), strangers.size() == 1 ? " belongs" : " belong",
                 " to --method ", method == "palu" ? "mixed" : "palu", ", the method is ", method);
  }
  if (calibration_.size() > 1 && absl::c_linear_search(calibration_, "self")) {
    return wrong("--calibration is self and ", calibration_.size() - 1,
                 " more: give one or more files, or self alone");
  }
  if (ratio_.has_value() && bytes_per_token_.has_value()) {
    return wrong("--ratio is ", *ratio_, " and --bytes-per-token is ", *bytes_per_token_,
                 ": one of them sets the budget");
  }
  return absl::OkStatus();
}

absl::StatusOr<MixedOptions> CompressFlags::Mixed() const {
  MixedOptions mixed = mixed_;
  ASSIGN_OR_RETURN(mixed.ratio, RatioOf(preset_));
  mixed.ratio = ratio_.value_or(mixed.ratio);
  mixed.bytes_per_token = bytes_per_token_;
  mixed.k_share = k_share_;
  mixed.sinks = static_cast<int>(sinks_.value_or(mixed.sinks));
  mixed.widths.widths.clear();
  for (const absl::string_view width : absl::StrSplit(bit_widths_, ',')) {
    int bits = 0;
    if (!absl::SimpleAtoi(width, &bits)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--bit-widths is \"", bit_widths_, "\", allowed: some of 8,4,3,2"));
    }
    mixed.widths.widths.push_back(bits);
  }
  if (own_page_ != "16" && own_page_ != "coded") {
    return absl::InvalidArgumentError(
        absl::StrCat("--own-page is \"", own_page_, "\", allowed: 16, coded"));
  }
  mixed.own_page = own_page_ == "16";
  return mixed;
}

absl::StatusOr<PaluOptions> CompressFlags::Palu() const {
  PaluOptions palu = palu_;
  ASSIGN_OR_RETURN(palu.allocation, ParseRankAllocation(allocation_));
  palu.k_dims = k_dims_;
  palu.sinks = static_cast<int>(sinks_.value_or(palu.sinks));
  return palu;
}

}  // namespace latentd
