#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/time/clock.h"
#include "base/check.h"
#include "base/mutex.h"
#include "scheduler/request.h"

namespace latentd {

// A sink that keeps what it is told, and aborts when it is told something after the end.
// Thread-safe.
class RecordingSink final : public TokenSink {
 public:
  void OnTokens(absl::Span<const GeneratedToken> tokens) override {
    {
      MutexLock lock(&mu_);
      LATENTD_CHECK(!finish_.has_value());
      for (const GeneratedToken& token : tokens) tokens_.push_back(token.id);
      changed_.NotifyAll();
    }
    if (on_tokens) on_tokens(tokens);
  }
  void OnFinish(const FinishInfo& info) override {
    if (on_finish) on_finish(info);
    MutexLock lock(&mu_);
    LATENTD_CHECK(!finish_.has_value());
    finish_ = info;
    changed_.NotifyAll();
  }

  // Set before the request is added; called on the loop's thread.
  std::function<void(absl::Span<const GeneratedToken>)> on_tokens;
  std::function<void(const FinishInfo&)> on_finish;

  std::vector<int32_t> tokens() const {
    MutexLock lock(&mu_);
    return tokens_;
  }
  std::optional<FinishInfo> finish() const {
    MutexLock lock(&mu_);
    return finish_;
  }

  // Wait for the end, or for so many tokens, as long as a healthy test can take.
  FinishInfo Wait() const {
    MutexLock lock(&mu_);
    const absl::Time deadline = absl::Now() + kPatience;
    while (!finish_.has_value()) {
      LATENTD_CHECK(absl::Now() < deadline);
      changed_.WaitUntil(&mu_, deadline);
    }
    return *finish_;
  }
  void WaitForTokens(size_t count) const {
    MutexLock lock(&mu_);
    const absl::Time deadline = absl::Now() + kPatience;
    while (tokens_.size() < count) {
      LATENTD_CHECK(absl::Now() < deadline);
      changed_.WaitUntil(&mu_, deadline);
    }
  }

 private:
  static constexpr absl::Duration kPatience = absl::Seconds(60);

  mutable Mutex mu_;
  mutable CondVar changed_;
  std::vector<int32_t> tokens_ ABSL_GUARDED_BY(mu_);
  std::optional<FinishInfo> finish_ ABSL_GUARDED_BY(mu_);
};

}  // namespace latentd
