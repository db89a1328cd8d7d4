#include "kernels/cuda/attention_plan.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/direct_decode.h"
#include "kernels/cuda/key_factors.h"
#include "kernels/cuda/latent_decode.h"
#include "kernels/dtype.h"

namespace latentd {
namespace {

absl::StatusOr<PlaneView> ViewOf(const CachePlane& plane, absl::string_view name) {
  if (plane.segments.size() > kMaxSegments) {
    return absl::UnimplementedError(absl::StrCat("attention on CUDA: the ", name, " plane has ",
                                                 plane.segments.size(), " segments, the most are ",
                                                 kMaxSegments));
  }
  PlaneView view{.latent_heads = plane.latent_heads,
                 .dims = plane.dims(),
                 .head_bytes = static_cast<int>(plane.head_bytes()),
                 .num_segments = static_cast<int>(plane.segments.size())};
  int first_dim = 0;
  for (int s = 0; s < view.num_segments; ++s) {
    const Segment& segment = plane.segments[s];
    view.segments[s] = {.codec = segment.codec,
                        .first_dim = first_dim,
                        .dims = segment.dims,
                        .offset = static_cast<int>(plane.segment_offset(s)),
                        .scale_offset = static_cast<int>(plane.scale_offset(s))};
    first_dim += segment.dims;
  }
  return view;
}

absl::StatusOr<PageView> ViewOf(const CacheLayer& layer) {
  PageView page;
  ASSIGN_OR_RETURN(page.k, ViewOf(layer.k, "K"));
  ASSIGN_OR_RETURN(page.v, ViewOf(layer.v, "V"));
  page.v_offset = layer.v_offset(0, 0);
  page.key_norm_offset = layer.key_norm_offset(0);
  page.bytes = layer.block_bytes();
  return page;
}

uint32_t TwoHalves(float low, float high) {
  return FloatToHalf(low) | static_cast<uint32_t>(FloatToHalf(high)) << 16;
}

// As PlanView::k_up_fragments.
std::vector<uint32_t> Fragments(const AttentionSpec& spec) {
  const int dims = spec.cache.k.dims(), pair_tiles = (spec.head_dim + 15) / 16;
  const std::vector<float> zeros(dims, 0.0f);
  std::vector<uint32_t> out;
  out.reserve(int64_t{spec.num_kv_heads} * pair_tiles * 16 * dims / 2);
  const auto add = [&](int head, int tile, bool y) {
    for (int dim = 0; dim < dims; dim += 16) {
      for (int lane = 0; lane < 32; ++lane) {
        const Pair pair = PairOf(spec.rope->pairs, 8 * tile + lane / 4);
        const int row = y ? pair.y : pair.x;
        const float* from = row < spec.head_dim
                                ? spec.k_up + (int64_t{head} * spec.head_dim + row) * dims
                                : zeros.data();
        from += dim + lane % 4 * 2;
        out.push_back(TwoHalves(from[0], from[1]));
        out.push_back(TwoHalves(from[8], from[9]));
      }
    }
  };
  for (int head = 0; head < spec.num_kv_heads; ++head) {
    for (int tile = 0; tile < pair_tiles; ++tile) {
      add(head, tile, /*y=*/false);
      add(head, tile, /*y=*/true);
    }
  }
  return out;
}

// up [heads][head_dim][dims] as [heads][dims][head_dim].
std::vector<float> Transposed(const float* up, int heads, int head_dim, int dims) {
  std::vector<float> out;
  out.reserve(int64_t{heads} * head_dim * dims);
  for (int h = 0; h < heads; ++h, up += int64_t{head_dim} * dims) {
    for (int d = 0; d < dims; ++d) {
      for (int i = 0; i < head_dim; ++i) out.push_back(up[int64_t{i} * dims + d]);
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaAttentionPlan>> CudaAttentionPlan::Create(
    CudaDevice& device, const AttentionSpec& spec, const DeviceRopeTable& rope,
    bool batch_invariant) {
  if (spec.head_dim % 2 != 0) {
    return absl::UnimplementedError(absl::StrCat("attention on CUDA: head_dim is ", spec.head_dim,
                                                 ", must be a multiple of 2"));
  }
  const CacheLayer& layer = spec.cache;
  std::unique_ptr<CudaAttentionPlan> plan(new CudaAttentionPlan(spec));
  PlanView& view = plan->view_;
  view = {.path = spec.path,
          .num_heads = spec.num_heads,
          .num_kv_heads = spec.num_kv_heads,
          .head_dim = spec.head_dim,
          .softmax_scale = spec.softmax_scale,
          .window = spec.window,
          .own_page = layer.own_page,
          .key_norms = layer.key_norms,
          .sinks = layer.sinks,
          .sink_dims = layer.sink_dims,
          .sink_bytes = layer.sink_bytes(),
          .sequence_bytes = layer.sequence_bytes(),
          .k_norm_epsilon = spec.k_norm_epsilon,
          .cos = rope.cos,
          .sin = rope.sin};
  if (spec.rope != nullptr) view.pairs = spec.rope->pairs;
  ASSIGN_OR_RETURN(view.coded, ViewOf(layer));
  if (layer.own_page) {
    ASSIGN_OR_RETURN(view.own, ViewOf(layer.OwnPageLayer()));
  }
  RETURN_IF_ERROR(CudaAttention::Check(device, view));

  const int64_t rows = int64_t{spec.num_kv_heads} * spec.head_dim;
  const int k_dims = layer.k.dims(), v_dims = layer.v.dims();
  const auto upload = [&](const float* from, int64_t count, DeviceArray<float>* to,
                          const float** seen) -> absl::Status {
    if (from == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(*to, DeviceArray<float>::CopyOf(device, absl::MakeConstSpan(from, count)));
    *seen = to->data();
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(upload(spec.k_up, rows * k_dims, &plan->k_up_, &view.k_up));
  RETURN_IF_ERROR(upload(spec.k_bias, rows, &plan->k_bias_, &view.k_bias));
  RETURN_IF_ERROR(upload(spec.v_bias, rows, &plan->v_bias_, &view.v_bias));
  RETURN_IF_ERROR(upload(spec.k_norm, spec.head_dim, &plan->k_norm_, &view.k_norm));
  RETURN_IF_ERROR(
      upload(spec.alibi_slopes, spec.num_heads, &plan->alibi_slopes_, &view.alibi_slopes));
  if (spec.v_up != nullptr) {
    const std::vector<float> v_up = Transposed(spec.v_up, spec.num_kv_heads, spec.head_dim, v_dims);
    RETURN_IF_ERROR(upload(v_up.data(), std::ssize(v_up), &plan->v_up_, &view.v_up));
  }
  if (spec.path == AttentionPath::kReconstruct) {
    ASSIGN_OR_RETURN(plan->k_up_fragments_, DeviceArray<uint32_t>::CopyOf(device, Fragments(spec)));
    view.k_up_fragments = plan->k_up_fragments_.data();
  }
  if (!batch_invariant) RETURN_IF_ERROR(plan->AddDecode(device, spec));
  plan->spec_.k_up = plan->spec_.v_up = plan->spec_.k_bias = plan->spec_.v_bias =
      plan->spec_.k_norm = plan->spec_.alibi_slopes = nullptr;
  return plan;
}

std::string_view CudaAttentionPlan::decode_kernel() const {
  switch (view_.decode.kernel) {
    case DecodeKernel::kLatents:
      return view_.decode.factors == FactorKind::kInt8 ? "int8 factors" : "fp16 factors";
    case DecodeKernel::kDirect:
      return "direct";
    case DecodeKernel::kNone:
      break;
  }
  return "general";
}

absl::Status CudaAttentionPlan::AddDecode(CudaDevice& device, const AttentionSpec& spec) {
  view_.decode = LatentDecodeUnits(device, spec, view_);
  if (view_.decode.kernel == DecodeKernel::kNone) {
    view_.decode = DirectDecodeUnits(device, view_);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(AddKeyFactors(device, spec, &key_factors_, &view_));
  if (!view_.own_page) return absl::OkStatus();
  const DecodeUnits& coded = view_.decode;
  own_view_ = view_;
  own_view_.coded = view_.own;
  own_view_.decode = {.pages = DecodePages::kOwn};
  const DecodeUnits own = LatentDecodeUnits(device, spec, own_view_);
  own_view_.decode = own;
  // Units alike have the same bytes of factors.
  const bool shared = own.factors == coded.factors && own.heads == coded.heads;
  if (own.kernel == DecodeKernel::kNone || shared) return absl::OkStatus();
  return AddKeyFactors(device, spec, &own_key_factors_, &own_view_);
}

absl::Status CudaAttentionPlan::AddKeyFactors(CudaDevice& device, const AttentionSpec& spec,
                                              DeviceKeyFactors* memory, PlanView* view) {
  const DecodeUnits& units = view->decode;
  const KeyFactorValues factors = MakeKeyFactors(spec, units.factors, units.heads);
  ASSIGN_OR_RETURN(memory->values, DeviceArray<uint8_t>::CopyOf(device, factors.values));
  ASSIGN_OR_RETURN(memory->scales, DeviceArray<float>::CopyOf(device, factors.scales));
  ASSIGN_OR_RETURN(memory->page_turns,
                   DeviceArray<uint16_t>::CopyOf(device, MakePageTurns(spec, units.factors)));
  view->key_factors = {.values = memory->values.data(),
                       .scales = memory->scales.data(),
                       .page_turns = memory->page_turns.data(),
                       .unit_bytes = KeyFactorBytes(spec, units.factors, units.heads)};
  return absl::OkStatus();
}

}  // namespace latentd
