#pragma once

#include "kernels/cuda/latent_decode.cuh"

namespace latentd {

#ifdef LATENTD_HOPPER

// Brings pages and factors to the shared memory of latent_decode.cuh. One thread at a time calls
// it: of the keys for a block's first piece, then of the values.
class PageFetcher {
 public:
  __device__ __forceinline__ PageFetcher(const LatentDecodeArguments& p, uint8_t* memory,
                                         DecodeBarriers& barriers)
      : p_(p), parts_(p.parts), memory_(memory), barriers_(barriers) {}

  // A piece's first pages, from `place` on, and the factors of its unit if they are not there. All
  // earlier pieces are done.
  __device__ __forceinline__ void Begin(const Piece& piece, RingPlace place, bool load) const {
    for (int j = 0; j < min(piece.count, p_.stages); ++j, place.Advance(p_.stages)) {
      Fetch(piece, place.at, BlockOf(piece, j));
    }
    if (load) FetchFactors(piece.unit);
  }

  // The block that holds page j of the piece, or the seat of the sequence whose own page it is.
  __device__ __forceinline__ int BlockOf(const Piece& piece, int j) const {
    if (j >= piece.count) return 0;
    if (ReadsOwnPages(p_.plan)) return p_.step.seat_of[piece.sequence];
    return p_.step.block_table[piece.sequence * p_.step.max_blocks + piece.page + j];
  }
  __device__ __forceinline__ void Fetch(const Piece& piece, int stage, int block) const {
    const PageView& page = p_.plan.coded;
    const int heads = p_.plan.decode.heads, first_head = piece.unit * heads;
    const int latent_head = first_head / parts_.kv_heads_of_latent;
    const uint8_t* from = PageAt(block);
    uint8_t* to = memory_ + parts_.stage + stage * parts_.stage_bytes;
    PhaseBarrier& barrier = barriers_.fetched[stage];
    barrier.Expect(parts_.k_bytes + parts_.v_bytes + parts_.norm_bytes);
    BulkCopyOnce(to, from + int64_t{latent_head} * parts_.k_bytes, parts_.k_bytes, barrier);
    to += parts_.k_bytes;
    BulkCopyOnce(to, from + page.v_offset + int64_t{latent_head} * parts_.v_bytes, parts_.v_bytes,
                 barrier);
    if (parts_.norm_bytes > 0) {
      BulkCopyOnce(to + parts_.v_bytes, from + page.key_norm_offset + 2 * first_head * kBlockTokens,
                   parts_.norm_bytes, barrier);
    }
  }

 private:
  __device__ __forceinline__ const uint8_t* PageAt(int block) const {
    const PlanView& plan = p_.plan;
    if (!ReadsOwnPages(plan)) return p_.step.layer + plan.coded.bytes * block;
    return p_.step.seats + plan.sequence_bytes * block + plan.sink_bytes;
  }
  __device__ __forceinline__ void FetchFactors(int unit) const {
    const KeyFactors& up = p_.plan.key_factors;
    const uint8_t* from = up.values + int64_t{unit} * up.unit_bytes;
    const bool biased = p_.plan.k_bias != nullptr;
    const int bytes = parts_.pass_bytes;
    for (int pass = 0; pass < parts_.passes; ++pass) {
      PhaseBarrier& barrier = barriers_.factors[pass];
      barrier.Expect(bytes + (biased ? kBiasBytes : 0));
      BulkCopy(memory_ + pass * bytes, from + pass * bytes, bytes, barrier);
      const int bias = parts_.bias + pass * kBiasBytes;
      if (biased) BulkCopy(memory_ + bias, from + bias, kBiasBytes, barrier);
    }
  }

  const LatentDecodeArguments& p_;
  const DecodeParts& parts_;
  uint8_t* memory_;
  DecodeBarriers& barriers_;
};

#endif

}  // namespace latentd
