#include "kernels/cpu/thread_pool.h"

#include <chrono>
#include <numeric>
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

TEST(ThreadPool, SleepingWorkersComeBack) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // far longer than workers spin
    std::vector<int> runs(100, 0);
    pool.ParallelFor(100, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) ++runs[i];
    });
    EXPECT_THAT(runs, Each(1));
  }
}

TEST(ThreadPool, BothThreadsWork) {
  ThreadPool pool(2);
  std::vector<int> ran_on(2, 0);
  // The caller's first chunk ends when the worker has begun its own: a pool without workers would
  // not come back.
  std::atomic<int> entered{0};
  pool.ParallelFor(2, 1, [&](int64_t, int64_t, int thread) {
    ++ran_on[thread];
    ++entered;
    while (entered.load() < 2) std::this_thread::yield();
  });
  EXPECT_THAT(ran_on, Each(1));
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
