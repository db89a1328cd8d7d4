#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace latentd {

// A fixed set of threads that run the parallel regions of one caller. The caller takes part as
// thread 0; idle workers spin for some microseconds and then sleep. A worker that is late (asleep,
// preempted) never holds a region up: the others take its chunks and it finds nothing left. A pool
// with more threads than processors never spins and wakes no more workers than can run. Owned by
// one thread, which alone calls ParallelFor; regions do not nest.
class ThreadPool {
 public:
  using Body = absl::FunctionRef<void(int64_t begin, int64_t end, int thread)>;

  // Starts num_threads - 1 workers; num_threads >= 1.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end, thread) for disjoint ranges of `grain` items (the last may be shorter)
  // that cover [0, items), and returns when all are done. Ranges start at multiples of grain and
  // are handed out in order; thread is in [0, num_threads). Which thread runs a range is not fixed:
  // a result may not depend on it.
  void ParallelFor(int64_t items, int64_t grain, Body body);

  // The grain that gives each thread about `chunks_per_thread` ranges.
  int64_t Grain(int64_t items, int chunks_per_thread = 4) const {
    const int64_t chunks = static_cast<int64_t>(num_threads()) * chunks_per_thread;
    return items <= chunks ? 1 : (items + chunks - 1) / chunks;
  }

 private:
  void WorkerLoop(int thread);
  // Runs chunks of the current region until none is left to claim; returns how many it ran.
  int64_t RunChunks(int thread);
  void WaitUntilDone();

  const int spins_;  // before a wait goes to sleep; 0 when there are more threads than processors
  const int most_woken_;  // workers for one region

  // The region that runs. Written by the caller while no chunk is claimed; read only by those who
  // have claimed one.
  const Body* body_ = nullptr;
  int64_t items_ = 0;
  int64_t grain_ = 1;
  int64_t chunks_ = 0;

  // Region number in the high 32 bits, unclaimed chunks in the low 32. A claim is a
  // compare-and-swap that takes one off.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int64_t> unfinished_{0};  // chunks of the region not yet done

  // Guards nothing: taken by who goes to sleep and by who wakes, so that no wake falls between a
  // sleeper's last look and its sleep.
  alignas(64) std::mutex mu_;
  std::condition_variable work_cv_;  // sleeping workers
  std::condition_variable done_cv_;  // the sleeping caller
  std::atomic<int> sleeping_workers_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stop_{false};

  std::vector<std::thread> workers_;
};

}  // namespace latentd
