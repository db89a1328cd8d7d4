#pragma once

#include "kernels/cuda/latent_decode.cuh"
#include "kernels/cuda/page_fetcher.cuh"

namespace latentd {

#ifdef LATENTD_HOPPER

// The warpgroups of latent_decode.cuh that fetch all pages but a block's first, turn queries, and
// take scores and values to the result.

template <FactorKind kKind, int kHeadDim, ValueCodes kCodes, int kHalves, int kQueryTiles>
struct ValueGroup {
  using Numbers = KeyNumbers<kKind>;
  static constexpr int kPairs = kHeadDim / 2;

  __device__ __forceinline__ ValueGroup(const LatentDecodeArguments& p, uint8_t* memory,
                                        DecodeBarriers& barriers)
      : p_(p),
        parts_(p.parts),
        memory_(memory),
        barriers_(barriers),
        fetcher_(p, memory, barriers),
        thread_(threadIdx.x % kValueThreads),
        warp_(thread_ / 32),
        lane_(threadIdx.x % 32),
        query_scales_(reinterpret_cast<float*>(memory + p.parts.query_scales)),
        sums_(p.plan.coded.v, p.value_blocks, p.num_value_blocks, p.parts.queries,
              memory + p.parts.sums) {}

  // `load`: whether the factors in shared memory are another unit's.
  __device__ __forceinline__ void Run(const Piece& piece, const DecodeLine& line, bool load) {
    Begin(piece, load);
    for (int j = 0; j < piece.count; ++j) Page(piece, j);
    Write(piece, line);
  }

 private:
  __device__ __forceinline__ void Begin(const Piece& piece, bool load) {
    if (thread_ == 0) {
      if (piece.before > 0) fetcher_.Begin(piece, place_, load);
      next_block_ = fetcher_.BlockOf(piece, min(piece.count, p_.stages));
    }
    LoadAngles(piece, 0);
    LoadQueries(piece);
    sums_.Begin();
    WaitForOthers(1, kValueThreads);
    for (int j = 0; j < kRing - 1; ++j) {
      TurnQueries(piece, j);
      LoadAngles(piece, j + 1);
    }
  }

  // Queries with the factors' scales, as numbers up to 1, and what those are to be multiplied with.
  __device__ __forceinline__ void LoadQueries(const Piece& piece) {
    const PlanView& plan = p_.plan;
    const int first = piece.unit * parts_.queries;
    const int64_t row = p_.step.cu_q_lens[piece.sequence];
    constexpr int kWarps = kValueThreads / 32, kOfWarp = (8 * kQueryTiles + kWarps - 1) / kWarps;
    float2 values[kOfWarp][kPairs / 32];
#pragma unroll
    for (int n = 0; n < kOfWarp; ++n) {  // all loads first: they take as long as one
      const int head = first + min(warp_ + n * kWarps, parts_.queries - 1);
      const float* q = p_.q + (row * plan.num_heads + head) * kHeadDim;
      const float* scales = plan.key_factors.scales + int64_t{head / parts_.per_kv} * kPairs;
#pragma unroll
      for (int i = 0; i < kPairs / 32; ++i) {
        const int pair = lane_ + 32 * i;
        const auto [x, y] = PairOf(plan.pairs, pair);
        const float scale = __ldg(scales + pair);
        values[n][i] = {__ldcg(q + x) * scale, __ldcg(q + y) * scale};
      }
    }
#pragma unroll
    for (int n = 0; n < kOfWarp; ++n) {
      const int query = warp_ + n * kWarps;
      if (query >= parts_.queries) break;
      float largest = 0x1p-126f;  // whose inverse is finite
      for (const float2& pair : values[n]) {
        largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
      }
      largest = WarpMax(largest);
      const float inverse = 1.0f / largest;
      auto* to = reinterpret_cast<float2*>(memory_ + parts_.query) + query * kPairs;
#pragma unroll
      for (int i = 0; i < kPairs / 32; ++i) {
        to[lane_ + 32 * i] = {values[n][i].x * inverse, values[n][i].y * inverse};
      }
      if (lane_ == 0) query_scales_[query] = largest * plan.softmax_scale * kLog2E;
    }
  }

  static __device__ __forceinline__ uint32_t TwoNumbers(float low, float high) {
    const typename Numbers::Two two = Numbers::Of(low, high);
    return *reinterpret_cast<const uint32_t*>(&two);
  }
  // A thread turns two neighbouring pairs.
  __device__ __forceinline__ void LoadAngles(const Piece& piece, int j) {
    const PlanView& plan = p_.plan;
    const int64_t position = int64_t{piece.page + j} * kBlockTokens;
    for (int e = 0; e < 2; ++e) {
      const int pair = thread_ % (kPairs / 2) * 2 + e;
      const bool turns = pair < plan.pairs && j < piece.count;
      cos_[e] = turns ? plan.cos[position * plan.pairs + pair] : 1.0f;
      sin_[e] = turns ? plan.sin[position * plan.pairs + pair] : 0.0f;
    }
  }
  __device__ __forceinline__ void TurnQueries(const Piece& piece, int j) {
    if (j >= piece.count) return;
    constexpr int kThreadsOfQuery = kPairs / 2;
    const int two = thread_ % kThreadsOfQuery, ring = ScoresPlace(parts_, piece.before + j).at;
    constexpr int kAtOnce = kValueThreads / kThreadsOfQuery;
#pragma unroll
    for (int i = 0; i < (8 * kQueryTiles + kAtOnce - 1) / kAtOnce; ++i) {
      const int query = thread_ / kThreadsOfQuery + i * kAtOnce;
      const float4 q = reinterpret_cast<const float4*>(
          memory_ + parts_.query)[min(query, parts_.queries - 1) * kPairs / 2 + two];
      const uint2 turned = {
          TwoNumbers(q.x * cos_[0] + q.y * sin_[0], q.z * cos_[1] + q.w * sin_[1]),
          TwoNumbers(q.y * cos_[0] - q.x * sin_[0], q.w * cos_[1] - q.z * sin_[1])};
      auto* to =
          memory_ + parts_.turned + (ring * parts_.queries + query) * parts_.query_stride + two * 8;
      if (query < parts_.queries) *reinterpret_cast<uint2*>(to) = turned;
    }
    barriers_.turned[ring].Arrive();
  }

  __device__ __forceinline__ void Page(const Piece& piece, int j) {
    TurnQueries(piece, j + kRing - 1);
    LoadAngles(piece, j + kRing);
    barriers_.fetched[place_.at].Wait(place_.phase);
    const uint8_t* values =
        memory_ + parts_.stage + place_.at * parts_.stage_bytes + parts_.k_bytes;
    const int start = (piece.page + j) * kBlockTokens, last = piece.position - start;
    const int first = FirstVisible(p_.plan, piece.position) - start;
    sums_.BeginPage(first, last, values);
    const RingPlace ring = ScoresPlace(parts_, piece.before + j);
    barriers_.scored[ring.at].Wait(ring.phase);
    const auto* scores = reinterpret_cast<const float*>(memory_ + parts_.scores) +
                         ring.at * parts_.queries * kScoreStride;
    sums_.Softmax(
        last, scores, [this](int query) { return query_scales_[query]; }, [](int) { return 0.0f; });
    WaitForOthers(1, kValueThreads);
    sums_.Add(values, first, last);
    WaitForOthers(1, kValueThreads);
    if (thread_ == 0 && j + p_.stages < piece.count) {
      fetcher_.Fetch(piece, place_.at, next_block_);
      next_block_ = fetcher_.BlockOf(piece, j + p_.stages + 1);
    }
    place_.Advance(p_.stages);
  }

  __device__ __forceinline__ void Write(const Piece& piece, const DecodeLine& line) {
    const int64_t place =
        ReadsOwnPages(p_.plan)
            ? piece.sequence * p_.plan.decode.units + piece.unit
            : line.Place(static_cast<int>(blockIdx.x), piece.unit, piece.sequence);
    sums_.Write(reinterpret_cast<float*>(memory_ + parts_.stage),
                p_.partials + place * parts_.queries * (2 + p_.plan.coded.v.dims));
    FenceBulkCopies();
    WaitForOthers(1, kValueThreads);  // before the next piece's queries
  }

  const LatentDecodeArguments& p_;
  const DecodeParts& parts_;
  uint8_t* memory_;
  DecodeBarriers& barriers_;
  const PageFetcher fetcher_;
  const int thread_, warp_, lane_;
  float* query_scales_;
  RingPlace place_;
  int next_block_ = 0;
  float cos_[2], sin_[2];
  DecodeSums<kValueThreads / 32, kHalves, kQueryTiles, kCodes> sums_;
};

#endif

}  // namespace latentd
