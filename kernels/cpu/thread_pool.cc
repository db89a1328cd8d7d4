#include "kernels/cpu/thread_pool.h"

#include <algorithm>

#include "base/check.h"

namespace latentd {
namespace {

constexpr uint64_t kCountMask = 0xffffffffu;

// Long enough for the gaps between the regions of one step, short enough that an idle daemon uses
// no processor.
constexpr int kSpins = 1000;

inline void CpuRelax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// What this process may run on; 2 when the system does not say.
int Processors() {
  const unsigned processors = std::thread::hardware_concurrency();
  return processors == 0 ? 2 : static_cast<int>(processors);
}

}  // namespace

ThreadPool::ThreadPool(int num_threads)
    : spins_(num_threads <= Processors() ? kSpins : 0), most_woken_(std::max(Processors() - 1, 1)) {
  LATENTD_CHECK(num_threads >= 1);
  workers_.reserve(num_threads - 1);
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { WorkerLoop(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    stop_.store(true);
  }
  work_cv_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t items, int64_t grain, Body body) {
  LATENTD_CHECK(grain >= 1);
  if (items <= 0) return;
  const int64_t chunks = (items + grain - 1) / grain;
  if (chunks == 1 || workers_.empty()) {
    for (int64_t begin = 0; begin < items; begin += grain) {
      body(begin, std::min(begin + grain, items), 0);
    }
    return;
  }
  LATENTD_CHECK(chunks <= static_cast<int64_t>(kCountMask));

  body_ = &body;
  items_ = items;
  grain_ = grain;
  chunks_ = chunks;
  unfinished_.store(chunks, std::memory_order_relaxed);
  const uint64_t region = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  // Sequentially consistent, as is the sleepers' count: either a worker that goes to sleep sees the
  // ticket, or it is counted here.
  ticket_.store(region << 32 | static_cast<uint64_t>(chunks));
  if (const int sleeping = sleeping_workers_.load(); sleeping > 0) {
    {
      std::lock_guard<std::mutex> lock(mu_);
    }
    const int64_t useful = std::min<int64_t>({sleeping, chunks - 1, most_woken_});
    for (int64_t i = 0; i < useful; ++i) work_cv_.notify_one();
  }

  const int64_t ran = RunChunks(0);
  if (unfinished_.fetch_sub(ran, std::memory_order_acq_rel) != ran) WaitUntilDone();
}

int64_t ThreadPool::RunChunks(int thread) {
  int64_t ran = 0;
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while ((ticket & kCountMask) != 0) {
    if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    // The claimed chunk keeps the region open, so its description stands until this chunk is
    // counted as done.
    const int64_t chunk = chunks_ - static_cast<int64_t>(ticket & kCountMask);
    const int64_t begin = chunk * grain_;
    (*body_)(begin, std::min(begin + grain_, items_), thread);
    ++ran;
    ticket = ticket_.load(std::memory_order_acquire);
  }
  return ran;
}

void ThreadPool::WaitUntilDone() {
  for (int i = 0; i < spins_; ++i) {
    if (unfinished_.load(std::memory_order_acquire) == 0) return;
    CpuRelax();
  }
  std::unique_lock<std::mutex> lock(mu_);
  caller_sleeps_.store(true);
  done_cv_.wait(lock, [this] { return unfinished_.load() == 0; });
  caller_sleeps_.store(false);
}

void ThreadPool::WorkerLoop(int thread) {
  const auto has_work = [this] { return (ticket_.load() & kCountMask) != 0; };
  while (true) {
    int spins = spins_;
    while (!has_work() && spins-- > 0) CpuRelax();
    if (!has_work()) {
      std::unique_lock<std::mutex> lock(mu_);
      sleeping_workers_.fetch_add(1);
      work_cv_.wait(lock, [&] { return stop_.load() || has_work(); });
      sleeping_workers_.fetch_sub(1);
      if (stop_.load()) return;
    }
    const int64_t ran = RunChunks(thread);
    if (ran == 0 || unfinished_.fetch_sub(ran) != ran) continue;
    if (caller_sleeps_.load()) {
      {
        std::lock_guard<std::mutex> lock(mu_);
      }
      done_cv_.notify_one();
    }
  }
}

}  // namespace latentd
