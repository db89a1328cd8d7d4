#pragma once

#include <cstdint>

#include "kernels/cuda/row_tile.cuh"

namespace latentd {

// How decode attention is shared out. Its work are the coded pages of every sequence with one row
// in the step, once for each unit of heads that a block attends for together. They stand in a line,
// unit after unit, in a unit sequence after sequence; each block of the grid takes a part of the
// line, so that all end together: a piece of one sequence, or the end of one and the beginning of
// others. The parts are equal, but where blocks for own pages begin before: the grid's last blocks,
// which wait for those, take less. A piece leaves a partial result at its own place, a sequence's
// pieces one after another. Own pages (DecodePages::kOwn) are shared out likewise, each as a piece;
// their results are [sequences][units].

inline constexpr int kMostDecodeSequences = 1024;  // of a step

struct PageSpan {
  int first = 0;  // page of the sequence
  int count = 0;
};

__device__ inline bool IsDecoded(const StepView& step, int sequence) {
  return step.cu_q_lens[sequence + 1] - step.cu_q_lens[sequence] == 1;
}

__device__ inline PageSpan CodedPages(const PlanView& plan, const StepView& step, int sequence) {
  if (!IsDecoded(step, sequence)) return {};
  const int position = step.kv_lens[sequence] - 1, own = position / kBlockTokens;
  const int first = FirstVisible(plan, position) / kBlockTokens;
  return {first, max(0, (plan.own_page ? own : own + 1) - first)};
}

// Those that the plan's decode attention reads.
__device__ inline PageSpan DecodedPages(const PlanView& plan, const StepView& step, int sequence) {
  if (plan.decode.pages == DecodePages::kCoded) return CodedPages(plan, step, sequence);
  if (!IsDecoded(step, sequence)) return {};
  return {(step.kv_lens[sequence] - 1) / kBlockTokens, 1};
}

// Pages that a block could attend for in the time in which another one attends for an own page.
inline constexpr int kLatePages = 3;

struct DecodeLine {
  int sequences = 0;
  int pages = 0;       // of all sequences, of one unit
  int share = 1;       // pages of a block
  int early = 0;       // blocks that begin at once; the grid's others are late
  int late_share = 1;  // pages of a late block

  // `late`: how many of the blocks find a multiprocessor where own pages were attended for before.
  __device__ DecodeLine(int sequences, int pages, int units, int blocks, int late)
      : sequences(sequences), pages(pages), early(blocks - late) {
    const int all = units * pages;
    const bool enough = early * kLatePages >= all;  // without the late ones
    const int sharing = enough ? max(1, early) : blocks;
    share = max(1, (all + (enough ? 0 : late * kLatePages) + sharing - 1) / sharing);
    late_share = max(0, share - kLatePages);
  }
  // The first page, counted along the line, of block `block`; the line's end or more for none.
  __device__ int Begin(int block) const {
    return min(block, early) * share + max(0, block - early) * late_share;
  }
  // The block that has page `at`, counted along the line.
  __device__ int BlockOf(unsigned at) const {
    const unsigned of_early = early * share;
    const bool is_late = at >= of_early;
    return (is_late ? at - of_early : at) /
               static_cast<unsigned>(is_late ? max(1, late_share) : share) +
           (is_late ? early : 0);
  }
  // Of block `block` and the unit's sequence: where its piece's result lies.
  __device__ int Place(int block, int unit, int sequence) const {
    return block + unit * sequences + sequence;
  }
};

// prefix[i]: pages of the sequences before i, for all threads of the block.
__device__ inline void CountPages(const PlanView& plan, const StepView& step, int32_t* prefix) {
  for (int i = threadIdx.x; i < step.num_sequences; i += static_cast<int>(blockDim.x)) {
    prefix[i] = DecodedPages(plan, step, i).count;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    int before = 0;
    for (int first = 0; first < step.num_sequences; first += 32) {
      const int i = first + lane, count = i < step.num_sequences ? prefix[i] : 0;
      int sum = count;
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, distance);
        if (lane >= distance) sum += other;
      }
      if (i < step.num_sequences) prefix[i] = before + sum - count;
      before += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) prefix[step.num_sequences] = before;
  }
  __syncthreads();
}

// Of the partial results of a piece.
__host__ __device__ inline int PieceBytes(const PlanView& plan) {
  return plan.num_heads / plan.decode.units * (2 + plan.coded.v.dims) * 4;
}

// A value that all lanes have alike, so that the compiler knows it.
__device__ inline int Uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

// One sequence's part of a block's work.
struct Piece {
  int unit, sequence;
  int position;  // of its row
  int page;      // the first
  int count;     // pages
  int before;    // pages of the block's earlier pieces
};

// The pieces of a block, one after another.
class Pieces {
 public:
  __device__ __forceinline__ Pieces(const PlanView& plan, const StepView& step,
                                    const int32_t* prefix, const DecodeLine& line)
      : plan_(plan),
        step_(step),
        prefix_(prefix),
        line_(line),
        begin_(line.Begin(static_cast<int>(blockIdx.x))),
        end_(min(line.Begin(static_cast<int>(blockIdx.x) + 1), plan.decode.units * line.pages)),
        at_(begin_) {}

  __device__ __forceinline__ bool Next(Piece* piece) {
    if (at_ >= end_) return false;
    const int page = at_ % line_.pages;
    int low = 0, high = line_.sequences - 1;
    while (low < high) {  // the last sequence that begins at or before `page`
      const int middle = (low + high + 1) / 2;
      if (prefix_[middle] <= page) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    low = Uniform(low);
    piece->unit = at_ / line_.pages;
    piece->sequence = low;
    piece->position = Uniform(step_.kv_lens[low]) - 1;
    piece->page = Uniform(DecodedPages(plan_, step_, low).first + page - prefix_[low]);
    piece->count = min(end_ - at_, Uniform(prefix_[low + 1]) - page);
    piece->before = at_ - begin_;
    at_ += piece->count;
    return true;
  }

 private:
  const PlanView& plan_;
  const StepView& step_;
  const int32_t* prefix_;
  const DecodeLine& line_;
  const int begin_, end_;
  int at_;
};

}  // namespace latentd
