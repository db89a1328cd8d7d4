#include "engine/benchmark/kernels.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "engine/benchmark/median.h"

namespace latentd {
namespace {

constexpr int64_t kBeyondCaches = int64_t{512} << 20;  // bytes that are read before any is again
constexpr double kLeastSeconds = 0.02;                 // of one timing

struct Share {
  double dims;  // of those of a group's heads
  Codec codec;
};
struct Kind {
  const char* name;
  AttentionPath path;
  std::vector<Share> k, v;  // segments
};
const std::vector<Kind>& Kinds() {
  constexpr AttentionPath kFull = AttentionPath::kFull, kRebuilt = AttentionPath::kReconstruct;
  constexpr Codec kInt4 = Codec::kInt4, kInt2 = Codec::kInt2;
  static const std::vector<Kind> kinds = {
      {"full, f16", kFull, {{1, Codec::kF16}}, {{1, Codec::kF16}}},
      {"full, int8", kFull, {{1, Codec::kInt8}}, {{1, Codec::kInt8}}},
      {"full, int4", kFull, {{1, kInt4}}, {{1, kInt4}}},
      {"latents 50/50, int4", kRebuilt, {{0.5, kInt4}}, {{0.5, kInt4}}},
      {"latents 25/75, int4", kRebuilt, {{0.25, kInt4}}, {{0.75, kInt4}}},
      // As latent-compress makes them of a large model with --preset small, 7.7 times smaller.
      {"latents small, int4 and int2",
       kRebuilt,
       {{0.1875, kInt4}, {0.3125, kInt2}},
       {{0.4375, kInt4}, {0.4375, kInt2}}},
      {"latents 50/50, int4, absorbed", AttentionPath::kAbsorbed, {{0.5, kInt4}}, {{0.5, kInt4}}},
  };
  return kinds;
}

// Values in [-scale, scale).
std::vector<float> RandomValues(int64_t count, uint64_t seed, float scale) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = scale * (static_cast<float>(RandomBits(seed, i) >> 40) * 0x1p-23f - 1.0f);
  }
  return values;
}

RopeTable TableOf(int pairs, int max_positions) {
  RopeTable table{.pairs = pairs, .max_positions = max_positions};
  for (int position = 0; position < max_positions; ++position) {
    for (int j = 0; j < pairs; ++j) {
      const double angle = position * std::pow(5e5, -static_cast<double>(j) / pairs);
      table.cos.push_back(static_cast<float>(std::cos(angle)));
      table.sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return table;
}

// One block of random tokens.
std::vector<uint8_t> RandomBlock(const CacheLayer& layer) {
  std::vector<uint8_t> block(layer.block_bytes());
  const auto fill = [&](const CachePlane& plane, uint8_t* at, uint64_t seed) {
    for (int head = 0; head < plane.latent_heads; ++head, at += plane.head_bytes()) {
      for (int token = 0; token < kBlockTokens; ++token) {
        WriteCacheRow(plane, at, token,
                      RandomValues(plane.dims(), seed + head * kBlockTokens + token, 1.0f));
      }
    }
  };
  fill(layer.k, block.data(), 1 << 20);
  fill(layer.v, block.data() + layer.v_offset(0, 0), 2 << 20);
  return block;
}

class Bench {
 public:
  Bench(Ops& ops, const AttentionBenchOptions& options, const RopeTable& rope)
      : ops_(ops), options_(options), rope_(rope) {}

  absl::StatusOr<AttentionBenchRow> Measure(const Kind& kind) {
    const AttentionSpec spec = SpecOf(kind);
    ASSIGN_OR_RETURN(const std::unique_ptr<AttentionPlan> plan, ops_.PrepareAttention(spec));
    const int64_t blocks = Pages() * options_.batch;
    const int64_t bytes = blocks * spec.cache.block_bytes();
    const int copies = static_cast<int>((kBeyondCaches + bytes - 1) / bytes);
    ASSIGN_OR_RETURN(DeviceArray<uint8_t> pool,
                     DeviceArray<uint8_t>::Create(ops_.device(), copies * bytes));
    const std::vector<uint8_t> block = RandomBlock(spec.cache);
    for (int64_t b = 0; b < copies * blocks; ++b) {
      ops_.device().CopyIn(pool.data() + b * std::ssize(block), block.data(), std::ssize(block));
    }
    const std::vector<float> q =
        RandomValues(int64_t{options_.batch} * options_.heads * options_.head_dim, 3, 2.0f);
    ASSIGN_OR_RETURN(const DeviceArray<float> queries,
                     DeviceArray<float>::CopyOf(ops_.device(), q));
    ASSIGN_OR_RETURN(const DeviceArray<float> out,
                     DeviceArray<float>::Create(ops_.device(), std::ssize(q)));

    std::vector<int32_t> row_ends(options_.batch + 1), lengths(options_.batch, options_.context);
    std::vector<int32_t> table(blocks);
    std::iota(row_ends.begin(), row_ends.end(), 0);
    std::iota(table.begin(), table.end(), 0);
    ops_.BeginStep({.cu_q_lens = row_ends, .kv_lens = lengths, .block_table = table});
    CacheView view{.block_bytes = spec.cache.block_bytes(),
                   .cu_q_lens = row_ends,
                   .kv_lens = lengths,
                   .block_table = table,
                   .max_blocks = Pages()};
    int copy = 0;
    const auto seconds_of = [&](int count) -> absl::StatusOr<double> {
      const absl::Time start = absl::Now();
      for (int i = 0; i < count; ++i) {
        view.layer = pool.data() + copy * bytes;
        copy = (copy + 1) % copies;
        ops_.Attention({.plan = plan.get(), .cache = view, .q = queries.data(), .out = out.data()});
      }
      RETURN_IF_ERROR(ops_.device().Wait());
      return absl::ToDoubleSeconds(absl::Now() - start);
    };
    RETURN_IF_ERROR(seconds_of(1).status());  // warms up
    ASSIGN_OR_RETURN(const double once, seconds_of(1));
    const int count = std::max(1, static_cast<int>(kLeastSeconds / once));
    std::vector<double> timings;
    for (int r = 0; r < options_.repeats; ++r) {
      ASSIGN_OR_RETURN(const double seconds, seconds_of(count));
      timings.push_back(seconds / count * 1e6);
    }
    AttentionBenchRow row{.cache = kind.name, .us = Median(timings), .bytes = bytes};
    row.gb_per_s = static_cast<double>(bytes) / row.us * 1e-3;
    return row;
  }

 private:
  int64_t Pages() const { return (options_.context + kBlockTokens - 1) / kBlockTokens; }

  AttentionSpec SpecOf(const Kind& kind) {
    AttentionSpec spec{.path = kind.path,
                       .num_heads = options_.heads,
                       .num_kv_heads = options_.kv_heads,
                       .head_dim = options_.head_dim,
                       .softmax_scale = 1.0f / std::sqrt(static_cast<float>(options_.head_dim))};
    if (kind.path == AttentionPath::kFull) {
      spec.cache = FullCacheLayer(options_.kv_heads, options_.head_dim, kind.k[0].codec);
      return spec;
    }
    const int groups = options_.kv_heads / options_.group,
              width = options_.group * options_.head_dim;
    const auto plane = [&](const std::vector<Share>& shares, TileOrder order) {
      CachePlane of{.latent_heads = groups, .order = order};
      for (const Share& share : shares) {
        const int dims = std::max(1, static_cast<int>(share.dims * width / kTileDims)) * kTileDims;
        of.segments.push_back({.dims = dims, .codec = share.codec});
      }
      return of;
    };
    spec.cache.k = plane(kind.k, TileOrder::kDimMajor);
    spec.cache.v = plane(kind.v, TileOrder::kTokenMajor);
    const int64_t rows = int64_t{options_.kv_heads} * options_.head_dim;
    const auto factors = [&](int dims, uint64_t seed) {
      return RandomValues(rows * dims, seed, 1.0f / std::sqrt(static_cast<float>(dims)));
    };
    k_up_ = factors(spec.cache.k.dims(), 4);
    v_up_ = factors(spec.cache.v.dims(), 5);
    spec.k_up = k_up_.data();
    spec.v_up = v_up_.data();
    if (kind.path == AttentionPath::kReconstruct) spec.rope = &rope_;
    return spec;
  }

  Ops& ops_;
  const AttentionBenchOptions& options_;
  const RopeTable& rope_;
  std::vector<float> k_up_, v_up_;
};

}  // namespace

absl::StatusOr<std::vector<AttentionBenchRow>> BenchmarkAttention(
    Ops& ops, const AttentionBenchOptions& options, const std::function<void(double)>& progress) {
  if (options.kv_heads % options.group != 0 || options.heads % options.kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--kv-heads is ", options.kv_heads, ": --group ", options.group,
                     " must divide it, and it --heads ", options.heads));
  }
  const RopeTable rope = TableOf(options.head_dim / 2, options.context);
  std::vector<AttentionBenchRow> rows;
  for (const Kind& kind : Kinds()) {
    ASSIGN_OR_RETURN(rows.emplace_back(), Bench(ops, options, rope).Measure(kind));
    rows.back().ratio_to_full = rows.front().us / rows.back().us;
    progress(static_cast<double>(rows.size()) / static_cast<double>(Kinds().size()));
  }
  return rows;
}

}  // namespace latentd
