#include "server/text_workers.h"

#include <utility>

#include "base/check.h"

namespace latentd {

TextWorkers::TextWorkers(int num_threads) : max_running_prompts_(num_threads - 1) {
  LATENTD_CHECK(num_threads >= 2);
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(); });
}

TextWorkers::~TextWorkers() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void TextWorkers::Submit(Job job) {
  MutexLock lock(&mu_);
  jobs_.push_back(std::move(job));
  wake_.NotifyOne();  // under the lock: once the job is done, this object may go
}

void TextWorkers::SubmitPrompt(Job job) {
  MutexLock lock(&mu_);
  prompts_.push_back(std::move(job));
  wake_.NotifyOne();
}

bool TextWorkers::NextJob(Job* job, bool* is_prompt) {
  MutexLock lock(&mu_);
  for (;;) {
    *is_prompt = jobs_.empty();
    if (!jobs_.empty()) {
      *job = std::move(jobs_.front());
      jobs_.pop_front();
      return true;
    }
    if (!prompts_.empty() && running_prompts_ < max_running_prompts_) {
      *job = std::move(prompts_.front());
      prompts_.pop_front();
      ++running_prompts_;
      return true;
    }
    if (stopping_ && prompts_.empty()) return false;
    wake_.Wait(&mu_);
  }
}

void TextWorkers::Run() {
  Job job;
  bool is_prompt = false;
  while (NextJob(&job, &is_prompt)) {
    job();
    job = nullptr;  // what it held goes before the wait
    if (is_prompt) {
      {
        MutexLock lock(&mu_);
        --running_prompts_;
      }
      wake_.NotifyAll();  // a prompt may have been held back, also from the end
    }
  }
}

}  // namespace latentd
