#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace latentd {

// The threads that turn text into tokens and back, so that gRPC's threads and the serve loop never
// do. Jobs for tokens that a client waits for go before whole prompts, and one thread is always
// free of prompts. Thread-safe.
class TextWorkers {
 public:
  using Job = std::function<void()>;

  // `num_threads` >= 2.
  explicit TextWorkers(int num_threads);
  ~TextWorkers();  // runs what is queued, then joins
  TextWorkers(const TextWorkers&) = delete;
  TextWorkers& operator=(const TextWorkers&) = delete;

  // A short job. Whoever calls bounds how many there are: a stream has one at a time.
  void Submit(Job job);

  // A job as long as a prompt, or one that is bounded by Admission.
  void SubmitPrompt(Job job);

 private:
  void Run();
  bool NextJob(Job* job, bool* is_prompt);  // false: the end

  const int max_running_prompts_;  // one thread is left for tokens

  Mutex mu_;
  CondVar wake_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mu_);
  std::deque<Job> prompts_ ABSL_GUARDED_BY(mu_);
  int running_prompts_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;  // of the constructor and destructor alone
};

}  // namespace latentd
