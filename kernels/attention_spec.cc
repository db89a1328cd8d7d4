#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/ops.h"

namespace latentd {
namespace {

absl::Status Disagree(absl::string_view what, int64_t have, absl::string_view with, int64_t want) {
  return absl::InvalidArgumentError(
      absl::StrCat("attention: ", what, " is ", have, ", ", with, " ", want));
}

absl::Status CheckPlane(const CachePlane& plane, absl::string_view name, TileOrder order) {
  if (plane.latent_heads <= 0) {
    return Disagree(absl::StrCat(name, ".latent_heads"), plane.latent_heads, "must be at least", 1);
  }
  if (plane.segments.empty())
    return Disagree(absl::StrCat(name, ".segments"), 0, "must be at least", 1);
  for (const Segment& segment : plane.segments) {
    if (segment.dims <= 0 || segment.dims % kTileDims != 0) {
      return Disagree(absl::StrCat(name, ": segment dims"), segment.dims,
                      "must be a positive multiple of", kTileDims);
    }
  }
  if (plane.order != order) {
    return Disagree(absl::StrCat(name, ".order"), static_cast<int>(plane.order), "must be",
                    static_cast<int>(order));
  }
  return absl::OkStatus();
}

absl::Status CheckFullPlane(const AttentionSpec& spec, const CachePlane& plane,
                            absl::string_view name) {
  if (plane.latent_heads != spec.num_kv_heads) {
    return Disagree(absl::StrCat("full cache: ", name, ".latent_heads"), plane.latent_heads,
                    "must equal num_kv_heads", spec.num_kv_heads);
  }
  const int padded = (spec.head_dim + kTileDims - 1) / kTileDims * kTileDims;
  if (plane.dims() != padded) {
    return Disagree(absl::StrCat("full cache: ", name, ".dims"), plane.dims(),
                    absl::StrCat("for head_dim ", spec.head_dim, " must be"), padded);
  }
  return absl::OkStatus();
}

absl::Status CheckFinite(absl::string_view name, const float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(values[i])) {
      return absl::InvalidArgumentError(absl::StrCat("attention: value ", i, " of ", count, " of ",
                                                     name, " is ", values[i], ", must be finite"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLatentPlane(const AttentionSpec& spec, const CachePlane& plane,
                              absl::string_view name, const float* up, const float* bias) {
  if (spec.num_kv_heads % plane.latent_heads != 0) {
    return Disagree(absl::StrCat(name, ".latent_heads"), plane.latent_heads,
                    "must divide num_kv_heads", spec.num_kv_heads);
  }
  if (up == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("attention: path ", Name(spec.path), " needs ",
                                                   name, "_up [", spec.num_kv_heads * spec.head_dim,
                                                   ", ", plane.dims(), "], which is null"));
  }
  const int64_t rows = int64_t{spec.num_kv_heads} * spec.head_dim;
  RETURN_IF_ERROR(CheckFinite(absl::StrCat(name, "_up"), up, rows * plane.dims()));
  if (bias == nullptr) return absl::OkStatus();
  return CheckFinite(absl::StrCat(name, "_bias"), bias, rows);
}

absl::Status CheckRope(const AttentionSpec& spec) {
  if (spec.path == AttentionPath::kFull) return absl::OkStatus();  // rotated before the append
  if (spec.path == AttentionPath::kAbsorbed) {
    if (spec.rope == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("attention: path ", Name(spec.path),
                                                   " takes no rope table, one of ",
                                                   spec.rope->pairs, " pairs is given"));
  }
  if (spec.rope == nullptr) {
    return absl::InvalidArgumentError(
        "attention: path reconstruct needs a rope table, which is null");
  }
  if (spec.rope->pairs <= 0 || 2 * spec.rope->pairs > spec.head_dim) {
    return Disagree("rope pairs", spec.rope->pairs,
                    "must be in 1 .. head_dim / 2 =", spec.head_dim / 2);
  }
  const int64_t entries = int64_t{spec.rope->pairs} * spec.rope->max_positions;
  for (const size_t size : {spec.rope->cos.size(), spec.rope->sin.size()}) {
    if (static_cast<int64_t>(size) != entries) {
      return Disagree("entries of the rope table", static_cast<int64_t>(size),
                      "must be pairs x positions =", entries);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSinks(const AttentionSpec& spec) {
  const CacheLayer& cache = spec.cache;
  if (cache.sinks < 0 || cache.sinks > kBlockTokens) {
    return Disagree("cache.sinks", cache.sinks, "must be in 0 ..", kBlockTokens);
  }
  if (spec.path == AttentionPath::kFull && (cache.sinks > 0 || cache.own_page)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: path full takes no sinks and no own page, ", cache.sinks,
                     " sinks and ", int{cache.own_page}, " own page are given"));
  }
  const int64_t kv_dims = int64_t{spec.num_kv_heads} * spec.head_dim;
  const int64_t dims = cache.sinks > 0 ? kv_dims : 0;
  if (cache.sink_dims == dims) return absl::OkStatus();
  return Disagree("cache.sink_dims", cache.sink_dims,
                  absl::StrCat("for ", cache.sinks, " sinks of ", kv_dims, " dims must be"), dims);
}

absl::Status CheckKeyNorm(const AttentionSpec& spec) {
  const int norms = spec.k_norm != nullptr ? spec.num_kv_heads : 0;
  if (spec.cache.key_norms != norms) {
    return Disagree("cache.key_norms", spec.cache.key_norms,
                    spec.k_norm != nullptr ? "with k_norm must be" : "without k_norm must be",
                    norms);
  }
  if (spec.k_norm == nullptr) return absl::OkStatus();
  if (spec.path != AttentionPath::kReconstruct) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: path ", Name(spec.path), " takes no k_norm, one is given"));
  }
  if (!(spec.k_norm_epsilon >= 0.0f && std::isfinite(spec.k_norm_epsilon))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention: k_norm_epsilon is ", spec.k_norm_epsilon, ", must be finite and at least 0"));
  }
  return CheckFinite("k_norm", spec.k_norm, spec.head_dim);
}

// What changes which scores a row sees.
absl::Status CheckScores(const AttentionSpec& spec) {
  if (spec.window < 0) return Disagree("window", spec.window, "must be at least", 0);
  if (spec.alibi_slopes == nullptr) return absl::OkStatus();
  if (spec.path == AttentionPath::kReconstruct) {
    return absl::InvalidArgumentError(
        "attention: path reconstruct takes no alibi_slopes, some are given");
  }
  return CheckFinite("alibi_slopes", spec.alibi_slopes, spec.num_heads);
}

}  // namespace

const char* Name(AttentionPath path) {
  switch (path) {
    case AttentionPath::kFull:
      return "full";
    case AttentionPath::kReconstruct:
      return "reconstruct";
    case AttentionPath::kAbsorbed:
      return "absorbed";
  }
  return "unknown";
}

absl::Status ValidateAttention(const AttentionSpec& spec) {
  if (spec.head_dim <= 0) return Disagree("head_dim", spec.head_dim, "must be at least", 1);
  if (spec.num_kv_heads <= 0)
    return Disagree("num_kv_heads", spec.num_kv_heads, "must be at least", 1);
  if (spec.num_heads <= 0 || spec.num_heads % spec.num_kv_heads != 0) {
    return Disagree("num_heads", spec.num_heads, "must be a positive multiple of num_kv_heads",
                    spec.num_kv_heads);
  }
  if (!(spec.softmax_scale > 0.0f && spec.softmax_scale <= 3e38f)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention: softmax_scale is ", spec.softmax_scale, ", must be finite and above 0"));
  }
  RETURN_IF_ERROR(CheckPlane(spec.cache.k, "k", TileOrder::kDimMajor));
  RETURN_IF_ERROR(CheckPlane(spec.cache.v, "v", TileOrder::kTokenMajor));
  RETURN_IF_ERROR(CheckRope(spec));
  RETURN_IF_ERROR(CheckSinks(spec));
  RETURN_IF_ERROR(CheckKeyNorm(spec));
  RETURN_IF_ERROR(CheckScores(spec));
  if (spec.path == AttentionPath::kFull) {
    if (spec.k_up != nullptr || spec.v_up != nullptr || spec.k_bias != nullptr ||
        spec.v_bias != nullptr) {
      return absl::InvalidArgumentError(
          "attention: path full takes no factors and no biases, some are given");
    }
    RETURN_IF_ERROR(CheckFullPlane(spec, spec.cache.k, "k"));
    return CheckFullPlane(spec, spec.cache.v, "v");
  }
  if (spec.path == AttentionPath::kAbsorbed && spec.k_bias != nullptr) {
    return absl::InvalidArgumentError(
        "attention: path absorbed takes no k_bias (it changes no weight), one is given");
  }
  RETURN_IF_ERROR(CheckLatentPlane(spec, spec.cache.k, "k", spec.k_up, spec.k_bias));
  return CheckLatentPlane(spec, spec.cache.v, "v", spec.v_up, spec.v_bias);
}

}  // namespace latentd
