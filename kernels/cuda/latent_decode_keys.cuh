#pragma once

#include <type_traits>

#include "kernels/cuda/key_operands.cuh"
#include "kernels/cuda/latent_decode.cuh"
#include "kernels/cuda/page_fetcher.cuh"

namespace latentd {

#ifdef LATENTD_HOPPER

// The two warpgroups of latent_decode.cuh that rebuild keys.

template <FactorKind kKind, int kHeadDim, int kDims>
struct KeyGroup {
  using Numbers = KeyNumbers<kKind>;
  using Two = typename Numbers::Two;
  using Operands = KeyOperands < kKind, kDims<kDimsAtOnce ? kDims : kDimsAtOnce>;
  static constexpr int kChunks = kDims > kDimsAtOnce ? kDims / kDimsAtOnce : 1;
  static constexpr bool kInt8 = kKind == FactorKind::kInt8;
  using Sum = std::conditional_t<kInt8, int32_t, float>;  // a key before it is turned
  static constexpr int kPairBlocks = kHeadDim / 16;       // of 8 pairs
  static constexpr int kHalf = kFactorColumns / 2;

  __device__ __forceinline__ KeyGroup(const LatentDecodeArguments& p, uint8_t* memory,
                                      DecodeBarriers& barriers, int group, bool only_page)
      : p_(p),
        parts_(p.parts),
        memory_(memory),
        barriers_(barriers),
        group_(group),
        only_page_(only_page),
        lane_(threadIdx.x % 32),
        // Rows lane / 4 and 8 below are neighbouring tokens: so a thread loads both at once.
        token_(16 * (threadIdx.x / 32 % 4) + 2 * (lane_ / 4)) {
    const auto* turns =
        reinterpret_cast<const uint4*>(p.plan.key_factors.page_turns) + threadIdx.x % kGroupThreads;
    static_assert(sizeof(KeyTurn<kKind>) == sizeof(uint4) && kGroupThreads == kTurnThreads);
#pragma unroll
    for (int b = 0; b < kPairBlocks; ++b) {
      if (!kInt8 && b % kKeyGroups != group) continue;  // the other warpgroup's
      const uint4 turn = __ldg(turns + b * kGroupThreads);
      KeepTurn(b, *reinterpret_cast<const KeyTurn<kKind>*>(&turn));
    }
    // Each warpgroup reads what the other has written.
    if constexpr (!kInt8) WaitForOthers(2, kKeyGroups * kGroupThreads);
  }

  // `loads`: how often the factors came before.
  __device__ __forceinline__ void Run(const Piece& piece, int loads) {
    // A block's first pages, while the values' warpgroups, which fetch all others, load queries.
    if (piece.before == 0 && threadIdx.x == 0) {
      PageFetcher(p_, memory_, barriers_).Begin(piece, place_, true);
    }
    for (int j = 0; j < piece.count; ++j, place_.Advance(p_.stages)) {
      // With the queries of a page the value warps have seen the page come that had its stage
      // before, which may have been the other warpgroup's.
      const int index = piece.before + j;
      const RingPlace ring = ScoresPlace(parts_, index);
      barriers_.turned[ring.at].Wait(ring.phase);
      if (only_page_ || index % kKeyGroups == group_) Page(ring.at, loads);
    }
  }

 private:
  // Of a block of 8 pairs: in registers, or, of kFp16, in shared memory, once for both warpgroups,
  // each of which makes half of the blocks.
  __device__ __forceinline__ KeyTurn<kKind>* SharedTurn(int block) {
    return reinterpret_cast<KeyTurn<kKind>*>(memory_ + parts_.turns) + block * kGroupThreads +
           threadIdx.x % kGroupThreads;
  }
  __device__ __forceinline__ void KeepTurn(int block, const KeyTurn<kKind>& turn) {
    if constexpr (kInt8) {
      for (int i = 0; i < 2; ++i) {
        cos_[i][block] = turn.cos[i];
        sin_[i][block] = turn.sin[i];
      }
    } else {
      *SharedTurn(block) = turn;
    }
  }
  __device__ __forceinline__ KeyTurn<kKind> TurnOf(int block) {
    if constexpr (kInt8) {
      return {{cos_[0][block], cos_[1][block]}, {sin_[0][block], sin_[1][block]}};
    } else {
      return *SharedTurn(block);
    }
  }

  __device__ __forceinline__ void Page(int ring, int loads) {
    barriers_.fetched[place_.at].Wait(place_.phase);
    const uint8_t* codes = memory_ + parts_.stage + place_.at * parts_.stage_bytes;
    Operands keys;
    if (kChunks == 1) keys.Load(p_, token_, codes);
    const auto* norms = reinterpret_cast<const __half*>(codes + parts_.k_bytes + parts_.v_bytes);
    // Of the only page, which both warpgroups make, every second pass.
    for (int pass = only_page_ ? group_ : 0; pass < parts_.passes;
         pass += only_page_ ? kKeyGroups : 1) {
      if constexpr (kInt8) {
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          if (kChunks > 1) {
            WaitForProducts<0>();
            keys.Load(p_, token_, codes, chunk * kDimsAtOnce);
          }
          Multiply(keys.a, pass, 0, chunk, loads, left_);
          Multiply(keys.a, pass, 1, chunk, loads, right_);
        }
        // While the right half of a pass is multiplied, the left one becomes scores.
        WaitForProducts<1>();
        Score<0>(left_, pass, ring, keys.scale, norms);
        WaitForProducts<0>();
        Score<1>(right_, pass, ring, keys.scale, norms);
      } else {
        // Registers hold one half beside the latents; the other warpgroup multiplies meanwhile.
        MultiplyChunks(keys, codes, pass, 0, loads);
        Score<0>(left_, pass, ring, keys.scale, norms);
        if (HeadOf<1>(pass) >= p_.plan.decode.heads) break;
        MultiplyChunks(keys, codes, pass, 1, loads);
        Score<1>(left_, pass, ring, keys.scale, norms);
      }
    }
    barriers_.scored[ring].Arrive(only_page_ ? 1 : kKeyGroups);
  }

  // kFp16: all of K's dims with half a pass's columns.
  __device__ __forceinline__ void MultiplyChunks(Operands& keys, const uint8_t* codes, int pass,
                                                 int side, int loads) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (kChunks > 1) keys.Load(p_, token_, codes, chunk * kDimsAtOnce);
      Multiply(keys.a, pass, side, chunk, loads, left_);
    }
  }

  // Begins to multiply a chunk of K's dims with half a pass's columns; kFp16: and waits.
  __device__ __forceinline__ void Multiply(const uint32_t (&a)[Operands::kSteps][4], int pass,
                                           int side, int chunk, int loads, Sum (&keys)[kHalf / 2]) {
    if (side == 0 && chunk == 0) barriers_.factors[pass].Wait(loads);
    if constexpr (kInt8) {
      constexpr int kBytes = (Operands::kSteps + 3) / 4 * kFactorPartBytes;
      const int pass_bytes = kChunks == 1 ? kBytes : parts_.pass_bytes;
      BeginToAdd<Operands::kSteps>(a, pass * pass_bytes + chunk * kBytes + side * kHalf * 128,
                                   chunk > 0, keys);
    } else {
      constexpr int kChunkParts = kDimsAtOnce / 64;
      const bool add = chunk > 0 || BeginWithBias(pass, side, keys);
      AddProducts<Operands::kSteps>(
          a,
          pass * parts_.pass_bytes + chunk * (kChunkParts * kFactorPartBytes) + side * kHalf * 128,
          chunk, add, keys);
    }
  }
  // Of steps up to the last dim of K, or one more.
  template <int kCount>
  __device__ __forceinline__ void AddProducts(const uint32_t (&a)[Operands::kSteps][4], int factors,
                                              int chunk, bool add, Sum (&keys)[kHalf / 2]) {
    constexpr int kLeast = kDims == kDimsAtOnce ? 10 : 2;  // other kernels have fewer dims
    if constexpr (kCount > kLeast) {
      if (chunk == kChunks - 1 && p_.num_key_tiles - chunk * Operands::kSteps <= kCount - 2) {
        return AddProducts<kCount - 2>(a, factors, chunk, add, keys);
      }
    }
    BeginToAdd<kCount>(a, factors, add, keys);
    WaitForProducts<0>();
  }
  template <int kCount>
  __device__ __forceinline__ void BeginToAdd(const uint32_t (&a)[Operands::kSteps][4], int factors,
                                             bool add, Sum (&keys)[kHalf / 2]) {
    const uint32_t operand = RightOperand(SharedAddress(memory_) + factors);
    BeginProducts();
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      MultiplyAdd(keys, a[s], operand + (s / 4 * kFactorPartBytes + s % 4 * 32) / kOperandUnit,
                  s > 0 || add);
    }
    EndProducts();
  }
  // Whether there is one.
  __device__ __forceinline__ bool BeginWithBias(int pass, int side, float (&keys)[kHalf / 2]) {
    if (p_.plan.k_bias == nullptr) return false;
    const auto* biases = reinterpret_cast<const float2*>(memory_ + parts_.bias + pass * kBiasBytes +
                                                         side * kHalf * 4);
#pragma unroll
    for (int i = 0; i < kHalf / 8; ++i) {
      const float2 two = biases[4 * i + lane_ % 4];
      keys[4 * i] = keys[4 * i + 2] = two.x;
      keys[4 * i + 1] = keys[4 * i + 3] = two.y;
    }
    return true;
  }

  // Of half a pass: a head, or half of one.
  static constexpr int kHalves = kHeadDim / kHalf;
  template <int kSide>
  static __device__ __forceinline__ int HeadOf(int pass) {
    return kHalves == 1 ? 2 * pass + kSide : pass;
  }
  // Turned keys times queries, of half a pass.
  template <int kSide>
  __device__ __forceinline__ void Score(const Sum (&keys)[kHalf / 2], int pass, int ring,
                                        const float (&scale)[2], const __half* norms) {
    constexpr int kBlocks = kHalf / 16;  // of 8 pairs
    const int quad = lane_ % 4, column = lane_ / 4, per_kv = parts_.per_kv;
    const int head = HeadOf<kSide>(pass);
    if (head >= p_.plan.decode.heads) return;
    constexpr int kOfHead = kHalves == 1 ? 0 : kSide;
    const uint8_t* queries =
        memory_ + parts_.turned +
        (ring * parts_.queries + head * per_kv + column) * parts_.query_stride + quad * 8 +
        kOfHead * kBlocks * 32;
    FragmentB of_queries[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      uint2 two = {0, 0};
      if (column < per_kv) two = *reinterpret_cast<const uint2*>(queries + b * 32);
      of_queries[b] = {{two.x, two.y}};
    }
    if (kOfHead == 0) sums_ = FragmentD{};
    FragmentA a[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const KeyTurn<kKind> turn = TurnOf(kOfHead * kBlocks + b);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto two_keys = [&](int at) {
          return Numbers::Of(static_cast<float>(keys[at]), static_cast<float>(keys[at + 1]));
        };
        const Two x = two_keys(8 * b + 2 * i), y = two_keys(8 * b + 4 + 2 * i);
        const Two cos = turn.cos[i], sin = turn.sin[i];
        a[b].x[i] = Bits(__hfma2(x, cos, __hneg2(__hmul2(y, sin))));
        a[b].x[2 + i] = Bits(__hfma2(y, cos, __hmul2(x, sin)));
      }
    }
    // At the end: a product waits for those of the warpgroup that have begun.
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) Numbers::Multiply(a[b], of_queries[b], sums_);
    if (kOfHead != kHalves - 1) return;
    float by[2] = {scale[0], scale[1]};
    if (parts_.norm_bytes > 0) {
      for (int i = 0; i < 2; ++i) by[i] *= __half2float(norms[head * kBlockTokens + token_ + i]);
    }
    auto* scores = reinterpret_cast<float*>(memory_ + parts_.scores) +
                   (ring * parts_.queries + head * per_kv + 2 * quad) * kScoreStride + token_;
    if (2 * quad < per_kv) {
      *reinterpret_cast<float2*>(scores) = {sums_.x[0] * by[0], sums_.x[2] * by[1]};
    }
    if (2 * quad + 1 < per_kv) {
      *reinterpret_cast<float2*>(scores + kScoreStride) = {sums_.x[1] * by[0], sums_.x[3] * by[1]};
    }
  }
  static __device__ __forceinline__ uint32_t Bits(Two two) {
    return *reinterpret_cast<const uint32_t*>(&two);
  }

  const LatentDecodeArguments& p_;
  const DecodeParts& parts_;
  uint8_t* memory_;
  DecodeBarriers& barriers_;
  const int group_;
  const bool only_page_;  // of the block
  const int lane_, token_;
  RingPlace place_;
  Two cos_[2][kPairBlocks], sin_[2][kPairBlocks];  // kInt8
  Sum left_[kHalf / 2], right_[kHalf / 2];         // keys of both halves of a pass; kFp16: of one
  FragmentD sums_;
};

#endif

}  // namespace latentd
