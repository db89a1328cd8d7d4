#include "server/warm_up.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

constexpr int kPromptTokens = 16;
constexpr int kNewTokens = 4;

class WarmUpSink final : public TokenSink {
 public:
  void OnTokens(absl::Span<const GeneratedToken>) override {}
  void OnFinish(const FinishInfo& info) override {
    MutexLock lock(&mu_);
    info_ = info;
    over_.NotifyAll();
  }
  FinishInfo Wait() {
    MutexLock lock(&mu_);
    while (!info_.has_value()) over_.Wait(&mu_);
    return *info_;
  }

 private:
  Mutex mu_;
  CondVar over_;
  std::optional<FinishInfo> info_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<WarmUpTimes> WarmUp(ServeLoop* loop, const ServedModel& model, Clock* clock) {
  auto sink = std::make_shared<WarmUpSink>();
  auto request = std::make_shared<Request>();
  request->id = "warm-up";
  const int room = model.info.max_context - kNewTokens;
  for (int i = 0; i < std::clamp(room, 1, kPromptTokens); ++i) {
    request->prompt.push_back(i % model.info.vocab_size);
  }
  request->sampling.temperature = 0;
  request->max_new_tokens = kNewTokens;
  request->arrival = clock->Now();
  request->sink = sink;
  RETURN_IF_ERROR(loop->Add(request));
  const FinishInfo info = sink->Wait();
  if (info.reason == FinishReason::kError) return info.status;
  if (info.reason != FinishReason::kLength) return absl::CancelledError("the warm-up was cut off");
  return WarmUpTimes{.first_token = info.queue_time + info.prefill_time,
                     .total = info.queue_time + info.prefill_time + info.decode_time};
}

}  // namespace latentd
