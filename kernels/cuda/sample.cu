// Tokens drawn from logits, as kernels/reference/sampling.h defines it, and log probabilities.
//
// A block of threads has one row, which one multiprocessor reads from the second-level cache: a
// greedy row once, a draw three times, a cut by top_k or top_p four times more at most. It finds
// where a cut ends in bins of falling numbers, 4096 at a time, without a sort. Penalties and bans
// cost a pass to mark the ids and one to write the numbers that the rest of the work then reads.
// Weights are fp32, as on the CPU; their sums are exact.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/random.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/sample_row.cuh"

namespace latentd {
namespace {

constexpr float kLog2OfE = 1.4426950408889634f;

// A SampleRow as the device sees it. Its ids are its tokens, then its banned ids.
struct RowArguments {
  float factor;  // log2(e) / temperature; 0: greedy
  int top_k;     // 0: all
  float top_p, min_p;
  float repetition_penalty, presence_penalty, frequency_penalty;
  uint32_t uniform;  // the random number, in units of 2^-24
  int first_id, num_prompt, num_tokens, num_banned;
  int num_top;      // of the likeliest
  int first_top;    // among those of all rows
  bool logprobs;    // of the drawn token
  int64_t scratch;  // where it begins: [num_top] orders, then [vocab] numbers if it has ids
};

struct DrawnToken {
  int id;  // -1: none can be drawn
  float logprob;
};

struct SampleArguments {
  const float* logits;  // [L, vocab]
  int vocab;
  const RowArguments* rows;
  const int* ids;
  uint64_t* scratch;
  DrawnToken* drawn;  // [L], then the likeliest of every row
};

// ---- Penalties ----

// What is known of an id: how often it is in the output, and
constexpr uint32_t kInPrompt = 1u << 31, kBanned = 1u << 30;

__device__ inline float Penalized(const RowArguments& row, uint32_t marks, float logit) {
  if ((marks & kBanned) != 0) return -INFINITY;
  if (marks == 0) return logit;
  const float x = logit > 0.0f ? logit / row.repetition_penalty : logit * row.repetition_penalty;
  const uint32_t count = marks & ~kInPrompt;
  if (count == 0) return x;
  return x - (row.presence_penalty + row.frequency_penalty * static_cast<float>(count));
}

// x[vocab] are the row's logits with penalties and bans. Ids outside of the vocabulary are passed
// over.
__device__ inline void Penalize(const SampleArguments& p, const RowArguments& row,
                                const float* logits, float* x) {
  const int thread = static_cast<int>(threadIdx.x), num_ids = row.num_tokens + row.num_banned;
  auto* marks = reinterpret_cast<uint32_t*>(x);
  for (int i = thread; i < p.vocab; i += kSampleThreads) marks[i] = 0;
  __syncthreads();
  for (int n = thread; n < num_ids; n += kSampleThreads) {
    const int id = p.ids[row.first_id + n];
    if (id < 0 || id >= p.vocab) continue;
    if (n < row.num_prompt) {
      atomicOr(&marks[id], kInPrompt);
    } else if (n < row.num_tokens) {
      atomicAdd(&marks[id], 1u);
    } else {
      atomicOr(&marks[id], kBanned);
    }
  }
  __syncthreads();
  ForEach(logits, p.vocab, [&](int i, float logit) { x[i] = Penalized(row, marks[i], logit); });
  __syncthreads();
}

// ---- Draws ----

__device__ inline int Draw(const float* x, int vocab, uint64_t largest, const RowArguments& row,
                           SampleMemory& memory) {
  const SoftmaxWeight weight_of{.largest = NumberOf(KeyIn(largest)), .factor = row.factor};
  uint64_t last = 0;  // the order of the last that is kept
  if (row.top_k > 0 && row.top_k < vocab) {
    const auto one = [](uint64_t, float) { return uint64_t{1}; };
    const auto top_k = [&](uint64_t) { return static_cast<uint64_t>(row.top_k); };
    last = FindCut(x, vocab, largest, one, top_k, memory);
  }
  if (row.top_p < 1.0f) {
    const auto units = [&](uint64_t order, float value) {
      return order >= last ? UnitsOf(weight_of(value)) : uint64_t{0};
    };
    const auto top_p = [&](uint64_t all) {
      const double share = ceil(double{row.top_p} * static_cast<double>(all));
      return max(uint64_t{1}, min(all, static_cast<uint64_t>(share)));
    };
    last = max(last, FindCut(x, vocab, largest, units, top_p, memory));
  }
  const auto units = [&](uint64_t order, float value) {
    if (order < last) return uint64_t{0};
    const float weight = weight_of(value);
    return weight < row.min_p ? uint64_t{0} : UnitsOf(weight);
  };
  const auto target = [&](uint64_t all) {  // all times uniform / 2^24
    return __umul64hi(all, row.uniform) << 40 | (all * row.uniform) >> 24;
  };
  return FirstIdBeyond(x, vocab, units, target, memory);
}

// ---- Log probabilities ----

// Of a row that is ok.
class LogSoftmax {
 public:
  __device__ LogSoftmax(const float* logits, int vocab, uint64_t largest, SampleMemory& memory)
      : largest_(NumberOf(KeyIn(largest))) {
    const SoftmaxWeight weight_of{.largest = NumberOf(KeyIn(largest)), .factor = kLog2OfE};
    uint64_t units = 0;
    ForEach(logits, vocab, [&](int, float x) { units += UnitsOf(weight_of(x)); });
    const uint64_t all = RunningSumOf(units, memory).all;
    log_sum_ = log(static_cast<double>(all) / double{kWeightOne});
  }
  __device__ float operator()(float logit) const {
    return static_cast<float>(double{logit} - largest_ - log_sum_);
  }

 private:
  double largest_, log_sum_;
};

// The row's num_top likeliest tokens, likeliest first.
__device__ inline void WriteLikeliest(const float* logits, int vocab, uint64_t largest,
                                      const RowArguments& row, const LogSoftmax& log_softmax,
                                      uint64_t* orders, DrawnToken* top, SampleMemory& memory) {
  const int thread = static_cast<int>(threadIdx.x), count = row.num_top;
  const auto one = [](uint64_t, float) { return uint64_t{1}; };
  const auto wanted = [&](uint64_t) { return static_cast<uint64_t>(count); };
  const uint64_t last = FindCut(logits, vocab, largest, one, wanted, memory);
  __syncthreads();
  if (thread == 0) memory.found = 0;
  __syncthreads();
  ForEach(logits, vocab, [&](int i, float logit) {
    const uint64_t order = OrderOf(logit, i);
    if (order >= last) orders[atomicAdd(&memory.found, 1)] = order;
  });
  __syncthreads();
  for (int n = thread; n < count; n += kSampleThreads) {
    int before = 0;
    for (int other = 0; other < count; ++other) before += orders[other] > orders[n] ? 1 : 0;
    const int id = IdIn(orders[n]);
    top[before] = {.id = id, .logprob = log_softmax(logits[id])};
  }
}

// ---- Kernels ----

__global__ void __launch_bounds__(kSampleThreads) SampleRows(SampleArguments p) {
  __shared__ SampleMemory memory;
  const RowArguments row = p.rows[blockIdx.x];
  const float* logits = p.logits + int64_t{blockIdx.x} * p.vocab;
  uint64_t* orders = p.scratch + row.scratch;
  const Largest raw = FindLargest(logits, p.vocab, memory);
  const float* x = logits;
  Largest largest = raw;
  if (raw.ok && row.num_tokens + row.num_banned > 0) {
    auto* penalized = reinterpret_cast<float*>(orders + row.num_top);
    Penalize(p, row, logits, penalized);
    x = penalized;
    largest = FindLargest(x, p.vocab, memory);
  }
  DrawnToken drawn{.id = -1, .logprob = 0.0f};
  if (raw.ok && largest.ok) {
    drawn.id =
        row.factor == 0.0f ? IdIn(largest.order) : Draw(x, p.vocab, largest.order, row, memory);
    if (row.logprobs) {
      const LogSoftmax log_softmax(logits, p.vocab, raw.order, memory);
      drawn.logprob = log_softmax(logits[drawn.id]);
      if (row.num_top > 0) {
        WriteLikeliest(logits, p.vocab, raw.order, row, log_softmax, orders,
                       p.drawn + gridDim.x + row.first_top, memory);
      }
    }
  }
  if (threadIdx.x == 0) p.drawn[blockIdx.x] = drawn;
}

// NaN for a row with a NaN, a +infinity or no finite logit.
__global__ void __launch_bounds__(kSampleThreads)
    LogProbabilities(const float* all_logits, int vocab, const int* ids, float* results) {
  __shared__ SampleMemory memory;
  const float* logits = all_logits + int64_t{blockIdx.x} * vocab;
  const Largest largest = FindLargest(logits, vocab, memory);
  float result = NAN;
  if (largest.ok) {
    result = LogSoftmax(logits, vocab, largest.order, memory)(logits[ids[blockIdx.x]]);
  }
  if (threadIdx.x == 0) results[blockIdx.x] = result;
}

// ---- Launches ----

bool HasPenalties(const SampleRow& row) {
  return row.repetition_penalty != 1.0f || row.presence_penalty != 0.0f ||
         row.frequency_penalty != 0.0f;
}

float FactorOf(float temperature) {
  if (temperature == 0.0f) return 0.0f;
  // Finite, so that the largest number's weight is 1 for the smallest temperature, too.
  return static_cast<float>(std::min<double>(double{kLog2OfE} / temperature, FLT_MAX));
}

// What a Sample brings to the device, and how much it needs there.
struct Request {
  std::vector<RowArguments> rows;
  std::vector<int32_t> ids;  // of all rows
  int64_t scratch = 0;
  int num_top = 0;  // of all rows

  void Add(const SampleRow& row, int vocab) {
    const auto tokens = HasPenalties(row) ? row.tokens : absl::Span<const int32_t>();
    const int num_top = std::clamp(row.num_logprobs, 0, vocab);
    rows.push_back({.factor = FactorOf(row.temperature),
                    .top_k = row.top_k,
                    .top_p = row.top_p,
                    .min_p = row.min_p,
                    .repetition_penalty = row.repetition_penalty,
                    .presence_penalty = row.presence_penalty,
                    .frequency_penalty = row.frequency_penalty,
                    .uniform = static_cast<uint32_t>(
                        RandomUniform(row.seed, static_cast<uint64_t>(row.position)) * 0x1p24f),
                    .first_id = static_cast<int>(ids.size()),
                    .num_prompt = std::min(row.num_prompt_tokens, static_cast<int>(tokens.size())),
                    .num_tokens = static_cast<int>(tokens.size()),
                    .num_banned = static_cast<int>(row.banned.size()),
                    .num_top = num_top,
                    .first_top = this->num_top,
                    .logprobs = row.num_logprobs >= 0,
                    .scratch = scratch});
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    ids.insert(ids.end(), row.banned.begin(), row.banned.end());
    this->num_top += num_top;
    const bool changes = !tokens.empty() || !row.banned.empty();
    scratch += num_top + (changes ? (vocab + 1) / 2 : 0);
  }

  // The rows, then the ids.
  std::vector<std::byte> Packed() const {
    const size_t row_bytes = rows.size() * sizeof(RowArguments);
    std::vector<std::byte> packed(row_bytes + ids.size() * sizeof(int32_t));
    std::memcpy(packed.data(), rows.data(), row_bytes);
    if (!ids.empty()) {
      std::memcpy(packed.data() + row_bytes, ids.data(), ids.size() * sizeof(int32_t));
    }
    return packed;
  }
};

SampleResult ResultOf(const SampleRow& row, const DrawnToken& drawn, int num_top,
                      const DrawnToken* top) {
  SampleResult result{.token_id = drawn.id, .ok = drawn.id >= 0, .logprob = drawn.logprob};
  if (!result.ok || row.num_logprobs < 0) return result;
  for (int n = 0; n < num_top; ++n) {
    result.top.push_back({.token_id = top[n].id, .logprob = top[n].logprob});
  }
  return result;
}

}  // namespace

void CudaSampler::Sample(StepMemory& step, const SampleParams& p) {
  LATENTD_CHECK(p.rows.size() == p.results.size() && p.vocab > 0 && p.vocab <= kMaxVocab);
  if (p.rows.empty()) return;
  const auto vocab = static_cast<int>(p.vocab);
  const size_t count = p.rows.size();
  Request request;
  for (const SampleRow& row : p.rows) request.Add(row, vocab);
  if (const absl::Status status = scratch_.Reserve(device_, request.scratch); !status.ok()) {
    return device_.Fail(std::string(status.message()));
  }
  const std::byte* brought = step.Bring<std::byte>(request.Packed());
  const auto drawn = step.Reserve<DrawnToken>(count + request.num_top);
  Launch(device_, "sampling", SampleRows, {static_cast<unsigned>(count), kSampleThreads},
         {.logits = p.logits,
          .vocab = vocab,
          .rows = reinterpret_cast<const RowArguments*>(brought),
          .ids = reinterpret_cast<const int*>(brought + count * sizeof(RowArguments)),
          .scratch = scratch_.data(),
          .drawn = drawn.device});
  const DrawnToken* results = step.Fetch(drawn);
  for (size_t l = 0; results != nullptr && l < count; ++l) {
    const RowArguments& row = request.rows[l];
    p.results[l] = ResultOf(p.rows[l], results[l], row.num_top, results + count + row.first_top);
  }
}

void CudaSampler::LogProbability(StepMemory& step, const LogProbabilityParams& p) {
  LATENTD_CHECK(p.token_ids.size() == p.results.size() && p.vocab > 0 && p.vocab <= kMaxVocab);
  if (p.token_ids.empty()) return;
  const auto results = step.Reserve<float>(p.token_ids.size());
  Launch(device_, "log probabilities", LogProbabilities,
         {static_cast<unsigned>(p.token_ids.size()), kSampleThreads}, p.logits,
         static_cast<int>(p.vocab), step.Bring(p.token_ids), results.device);
  const float* fetched = step.Fetch(results);
  if (fetched != nullptr) std::copy_n(fetched, p.results.size(), p.results.begin());
}

}  // namespace latentd
