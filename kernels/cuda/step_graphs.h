#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <list>
#include <memory>

#include "absl/functional/function_ref.h"
#include "kernels/cuda/cuda_device.h"

namespace latentd {

// Ops::Replay: decode steps as CUDA graphs. A kind of step is done op by op when it first comes up,
// which brings all memory to its size, is recorded when it comes up again, and is one launch from
// then on. What was recorded holds addresses: it is thrown away once memory was allocated. Graphs
// that were not used for the longest time give way to others.
class StepGraphs {
 public:
  explicit StepGraphs(CudaDevice& device) : device_(device) {}

  // All that the launches of a step of one row a sequence depend on beside its values in the
  // device's memory.
  struct Kind {
    const uint8_t* pool = nullptr;
    int64_t sequences = 0;
    int64_t max_blocks = 0;  // StepMemory::max_blocks
    int64_t max_splits = 0;  // of attention, kSplitTokens each
    bool operator==(const Kind&) const = default;
  };

  // Does what `ops` puts into the device's queue in a step of that kind.
  void Run(const Kind& kind, absl::FunctionRef<void()> ops);

 private:
  struct Destroy {
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  using Graph = std::unique_ptr<CUgraphExec_st, Destroy>;
  struct Step {
    Kind kind;
    Graph graph;  // null while it came up once
  };

  Graph Record(absl::FunctionRef<void()> ops);

  CudaDevice& device_;
  std::list<Step> steps_;         // the latest first
  int64_t num_allocations_ = -1;  // of the device, at the latest Run
};

}  // namespace latentd
