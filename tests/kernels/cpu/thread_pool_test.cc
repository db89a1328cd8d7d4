#include "kernels/cpu/thread_pool.h"

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::Each;

TEST(ThreadPool, EveryItemRunsOnce) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.num_threads(), threads);
    for (int64_t items : {0, 1, 2, 7, 64, 1000}) {
      for (int64_t grain : {1, 3, 64, 5000}) {
        std::vector<int> runs(items, 0);
        pool.ParallelFor(items, grain, [&](int64_t begin, int64_t end, int thread) {
          EXPECT_EQ(begin % grain, 0);
          EXPECT_LE(end - begin, grain);
          EXPECT_TRUE(thread >= 0 && thread < threads) << thread;
          for (int64_t i = begin; i < end; ++i) ++runs[i];
        });
        EXPECT_THAT(runs, Each(1)) << threads << " threads, grain " << grain;
      }
    }
  }
}

// Each region reads what the one before it wrote, on other threads.
TEST(ThreadPool, RegionsFollowOneAnother) {
  for (int threads : {2, 5}) {
    ThreadPool pool(threads);
    std::vector<int64_t> from(257), to(257);
    std::iota(from.begin(), from.end(), 0);
    const int kRegions = 2000;
    for (int region = 0; region < kRegions; ++region) {
      pool.ParallelFor(257, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) to[i] = from[(i + 1) % 257] + 1;
      });
      std::swap(from, to);
    }
    for (int64_t i = 0; i < 257; ++i) ASSERT_EQ(from[i], (i + kRegions) % 257 + kRegions);
  }
}

// A region of two chunks of which each waits for the other to begin, as long as a healthy test can
// take: whether two threads ran it.
bool TwoThreadsRun(ThreadPool& pool) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::atomic<int> entered{0}, met{0};
  pool.ParallelFor(2, 1, [&](int64_t, int64_t, int) {
    ++entered;
    while (entered.load() < 2 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    if (entered.load() == 2) ++met;
  });
  return met.load() == 2;
}

TEST(ThreadPool, WorkersWork) {
  ThreadPool pool(2);
  EXPECT_TRUE(TwoThreadsRun(pool));
}

// More threads than any machine has processors, too.
TEST(ThreadPool, SleepingWorkersComeBack) {
  for (int threads : {2, 600}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 3; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // far longer than workers spin
      EXPECT_TRUE(TwoThreadsRun(pool)) << threads << " threads";
    }
  }
}

TEST(ThreadPool, GrainCutsWorkForAllThreads) {
  ThreadPool pool(2);
  EXPECT_EQ(pool.Grain(5), 1);
  EXPECT_EQ(pool.Grain(80), 10);
  EXPECT_EQ(pool.Grain(81), 11);
  EXPECT_EQ(pool.Grain(80, 1), 40);
}

}  // namespace
}  // namespace latentd
