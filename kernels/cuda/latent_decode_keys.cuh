#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/latent_decode.cuh"

namespace latentd {

#ifdef LATENTD_HOPPER

// The two warpgroups of latent_decode.cuh that rebuild keys.

// Codes of at most 4 bits of one token: dims 4 half + j and 8 + 4 half + j of a tile in the nibbles
// of byte j.
__device__ inline uint32_t KeyNibbles(const uint8_t* tile, int bits, int token, int half) {
  const auto* words = reinterpret_cast<const uint32_t*>(tile);
  if (bits == 4) return words[half * kBlockTokens + token];
  const uint32_t low = words[token] >> (2 * half) & 0x33333333u;
  if (bits == 2) return low;
  return low | KeyHighBits(reinterpret_cast<const uint16_t*>(tile + 4 * kBlockTokens)[token], half);
}

// The largest multiplier with which the odd integers of a grid fit int8.
__device__ inline int MostMultiplier(int bits) { return bits == 4 ? 8 : bits == 3 ? 18 : 42; }

template <int kHeadDim, int kSteps>
struct KeyGroup {
  static constexpr int kPairBlocks = kHeadDim / 16;  // of 8 pairs
  static constexpr int kHalf = kFactorColumns / 2;

  __device__ __forceinline__ KeyGroup(const LatentDecodeArguments& p, const DecodeParts& parts,
                                      uint8_t* memory, DecodeBarriers& barriers, int group)
      : p_(p),
        parts_(parts),
        memory_(memory),
        barriers_(barriers),
        group_(group),
        lane_(threadIdx.x % 32),
        // Rows lane / 4 and 8 below are neighbouring tokens: so a thread loads both at once.
        token_(16 * (threadIdx.x / 32 % 4) + 2 * (lane_ / 4)) {
    const PlanView& plan = p.plan;
#pragma unroll
    for (int b = 0; b < kPairBlocks; ++b) {
      for (int i = 0; i < 2; ++i) {
        float cos[2], sin[2];
        for (int e = 0; e < 2; ++e) {
          const int pair = 8 * b + lane_ % 4 * 2 + e;
          const bool turns = pair < plan.pairs;
          cos[e] = turns ? plan.cos[(token_ + i) * plan.pairs + pair] : 1.0f;
          sin[e] = turns ? plan.sin[(token_ + i) * plan.pairs + pair] : 0.0f;
        }
        cos_[i][b] = __floats2bfloat162_rn(cos[0], cos[1]);
        sin_[i][b] = __floats2bfloat162_rn(sin[0], sin[1]);
      }
    }
  }

  // `loads`: how often the factors came before.
  __device__ __forceinline__ void Run(const Piece& piece, int loads) {
    for (int j = 0; j < piece.count; ++j, place_.Advance(p_.stages)) {
      const int index = piece.before + j;
      if (index % 2 == group_) Page(index, loads);
    }
  }

 private:
  __device__ __forceinline__ void Page(int index, int loads) {
    // First: with the queries of this page the value warps have seen the page come that had its
    // stage before, which may have been the other warpgroup's.
    const int ring = index % kRing;
    barriers_.turned[ring].Wait(index / kRing);
    barriers_.fetched[place_.stage].Wait(place_.phase);
    const uint8_t* codes = memory_ + parts_.stage + place_.stage * parts_.stage_bytes;
    uint32_t a[kSteps][4];
    float scale[2];
    if (p_.plan.coded.k.num_segments == 1 && p_.key_tiles[0].bits == 4) {
      LoadFourBits(codes, a, scale);
    } else {
      LoadMixed(codes, a, scale);
    }
    const auto* norms = reinterpret_cast<const __half*>(codes + parts_.k_bytes + parts_.v_bytes);
    // While the right half of a pass is multiplied, the left one becomes scores.
    for (int pass = 0; pass < parts_.passes; ++pass) {
      Multiply(a, pass, 0, loads, left_);
      Multiply(a, pass, 1, loads, right_);
      WaitForProducts<1>();
      Score<0>(left_, pass, ring, scale, norms);
      WaitForProducts<0>();
      Score<1>(right_, pass, ring, scale, norms);
    }
    barriers_.scored[ring].Arrive();
  }

  // int8 of 4-bit codes c: 8 (2 c - 15). Past the last dim anything will do: its factors are 0.
  __device__ __forceinline__ void LoadFourBits(const uint8_t* codes, uint32_t (&a)[kSteps][4],
                                               float (&scale)[2]) {
    constexpr uint32_t kHigh = 0xF0F0F0F0u, kBias = 0x88888888u;
    const uint8_t* at = codes + lane_ % 4 * 256 + token_ * 4;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const uint2 two = *reinterpret_cast<const uint2*>(at + s * 1024);
      a[s][0] = (two.x << 4 & kHigh) ^ kBias;
      a[s][1] = (two.y << 4 & kHigh) ^ kBias;
      a[s][2] = (two.x & kHigh) ^ kBias;
      a[s][3] = (two.y & kHigh) ^ kBias;
    }
    const auto scales = *reinterpret_cast<const __half2*>(
        codes + p_.plan.coded.k.segments[0].scale_offset + 2 * token_);
    constexpr float unit = 1.0f / 16;
    scale[0] = __low2float(scales) * unit;
    scale[1] = __high2float(scales) * unit;
  }

  // Segments of up to 4 bits with scales of their own: int8 of a code c of b bits is
  // m (2 c - (2^b - 1)), where m brings the segment's scale to one that all segments share.
  __device__ __forceinline__ void LoadMixed(const uint8_t* codes, uint32_t (&a)[kSteps][4],
                                            float (&scale)[2]) {
    const PlaneView& plane = p_.plan.coded.k;
    auto* multipliers =
        memory_ + parts_.multipliers + group_ * plane.num_segments * kBlockTokens;  // [segment][64]
    float shared[2] = {0.0f, 0.0f}, fault[2] = {0.0f, 0.0f};
    for (int s = 0; s < plane.num_segments; ++s) {
      const SegmentView& segment = plane.segments[s];
      const auto scales =
          *reinterpret_cast<const __half2*>(codes + segment.scale_offset + 2 * token_);
      const float least = 1.0f / static_cast<float>(2 * MostMultiplier(BitsOf(segment.codec)));
      for (int i = 0; i < 2; ++i) {
        const float x = i == 0 ? __low2float(scales) : __high2float(scales);
        shared[i] = fmaxf(shared[i], x * least);
        fault[i] += x * 0.0f;  // not a number if x is none
      }
    }
    __syncwarp();  // the last page's multipliers were read
    for (int s = lane_ % 4; s < plane.num_segments; s += 4) {
      const SegmentView& segment = plane.segments[s];
      const auto scales =
          *reinterpret_cast<const __half2*>(codes + segment.scale_offset + 2 * token_);
      const auto most = static_cast<float>(MostMultiplier(BitsOf(segment.codec)));
      for (int i = 0; i < 2; ++i) {
        const float x = i == 0 ? __low2float(scales) : __high2float(scales);
        const float m = shared[i] > 0.0f ? fminf(rintf(x / (2.0f * shared[i])), most) : 0.0f;
        multipliers[s * kBlockTokens + token_ + i] = static_cast<uint8_t>(fmaxf(m, 0.0f));
      }
    }
    __syncwarp();
    const int quad = lane_ % 4;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const KeyTile& of = p_.key_tiles[min(2 * s + quad / 2, p_.num_key_tiles - 1)];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t nibbles = KeyNibbles(codes + of.offset, of.bits, token_ + i, quad % 2);
        const uint32_t m = multipliers[of.segment * kBlockTokens + token_ + i];
        const uint32_t bias = 0x01010101u * (128 - m * ((1u << of.bits) - 1));
        a[s][i] = ((nibbles & 0x0F0F0F0Fu) * (2 * m) + bias) ^ 0x80808080u;
        a[s][2 + i] = ((nibbles >> 4 & 0x0F0F0F0Fu) * (2 * m) + bias) ^ 0x80808080u;
      }
    }
    for (int i = 0; i < 2; ++i) scale[i] = shared[i] + fault[i];
  }

  // Begins to multiply with half a pass's columns.
  __device__ __forceinline__ void Multiply(const uint32_t (&a)[kSteps][4], int pass, int side,
                                           int loads, int32_t (&keys)[kHalf / 2]) {
    constexpr int kParts = (kSteps + 3) / 4;  // of 128 dims of K
    if (side == 0) barriers_.factors[pass].Wait(loads);
    const uint32_t factors = RightOperand(SharedAddress(memory_) +
                                          pass * kParts * kFactorPartBytes + side * kHalf * 128);
    BeginProducts();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      MultiplyAdd(keys, a[s], factors + (s / 4 * kFactorPartBytes + s % 4 * 32) / kOperandUnit,
                  s > 0);
    }
    EndProducts();
  }

  // Turned keys times queries, of half a pass: a head, or half of one.
  template <int kSide>
  __device__ __forceinline__ void Score(const int32_t (&keys)[kHalf / 2], int pass, int ring,
                                        const float (&scale)[2], const __half* norms) {
    constexpr int kBlocks = kHalf / 16;  // of 8 pairs
    constexpr int kHalves = kHeadDim / kHalf;
    const int quad = lane_ % 4, column = lane_ / 4, per_kv = parts_.per_kv;
    const int head = kHalves == 1 ? 2 * pass + kSide : pass;
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
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto two_keys = [&](int at) {
          return __floats2bfloat162_rn(static_cast<float>(keys[at]),
                                       static_cast<float>(keys[at + 1]));
        };
        const __nv_bfloat162 x = two_keys(8 * b + 2 * i), y = two_keys(8 * b + 4 + 2 * i);
        const __nv_bfloat162 cos = cos_[i][kOfHead * kBlocks + b];
        const __nv_bfloat162 sin = sin_[i][kOfHead * kBlocks + b];
        a[b].x[i] = Bits(__hfma2(x, cos, __hneg2(__hmul2(y, sin))));
        a[b].x[2 + i] = Bits(__hfma2(y, cos, __hmul2(x, sin)));
      }
    }
    // At the end: a product waits for those of the warpgroup that have begun.
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) MultiplyAddBFloat(a[b], of_queries[b], sums_);
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
  static __device__ __forceinline__ uint32_t Bits(__nv_bfloat162 two) {
    return *reinterpret_cast<const uint32_t*>(&two);
  }

  const LatentDecodeArguments& p_;
  const DecodeParts& parts_;
  uint8_t* memory_;
  DecodeBarriers& barriers_;
  const int group_, lane_, token_;
  StagePlace place_;
  __nv_bfloat162 cos_[2][kPairBlocks], sin_[2][kPairBlocks];
  int32_t left_[kHalf / 2], right_[kHalf / 2];  // keys of both halves of a pass
  FragmentD sums_;
};

#endif

}  // namespace latentd
