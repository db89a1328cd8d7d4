#include "kernels/cuda/step_graphs.h"

#include <algorithm>
#include <utility>

namespace latentd {
namespace {

// A graph takes a few KiB of memory for each of its kernels.
constexpr size_t kMaxSteps = 64;

}  // namespace

void StepGraphs::Run(const Kind& kind, absl::FunctionRef<void()> ops) {
  const int64_t allocations = device_.num_allocations();
  if (std::exchange(num_allocations_, allocations) != allocations) steps_.clear();
  const auto found = std::ranges::find(steps_, kind, &Step::kind);
  if (found == steps_.end()) {
    if (steps_.size() == kMaxSteps) steps_.pop_back();
    steps_.push_front({.kind = kind});
    return ops();
  }
  steps_.splice(steps_.begin(), steps_, found);
  Graph& graph = steps_.front().graph;
  if (graph == nullptr) graph = Record(ops);
  if (graph == nullptr) return;  // the device has noted why
  device_.Check(cudaGraphLaunch(graph.get(), device_.stream()), "launch of a step's graph");
}

StepGraphs::Graph StepGraphs::Record(absl::FunctionRef<void()> ops) {
  cudaGraph_t recorded = nullptr;
  cudaGraphExec_t graph = nullptr;
  device_.Check(cudaStreamBeginCapture(device_.stream(), cudaStreamCaptureModeThreadLocal),
                "recording of a step");
  ops();
  device_.Check(cudaStreamEndCapture(device_.stream(), &recorded), "recording of a step");
  if (recorded != nullptr) {
    device_.Check(cudaGraphInstantiate(&graph, recorded, 0), "graph of a step");
    device_.Check(cudaGraphDestroy(recorded), "graph of a step");
  }
  return Graph(graph);
}

}  // namespace latentd
