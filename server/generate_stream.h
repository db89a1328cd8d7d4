#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "grpcpp/alarm.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "latentd/v1/generation.pb.h"
#include "server/convert.h"
#include "server/front_end.h"
#include "server/response_text.h"

namespace latentd {

// One Generate. Three parties call it: gRPC (writes done, cancelled, over), the serve loop (tokens,
// end), and a text worker that runs its job: parse, encode and hand over the request; then,
// whenever tokens came, turn them into messages. There is at most one job and one write at a time,
// and exactly one Finish. It keeps itself alive from Start to OnDone.
//
//   loop --tokens--> inbox_ --job--> outbox_ --one write in flight--> client
//
// Text that waits for a slow client is merged into one message; past max_outbox_bytes the stream is
// given up. What waits when the work is over must be read within kDrainTime.
class GenerateStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                             public TokenSink,
                             public std::enable_shared_from_this<GenerateStream> {
 public:
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(FrontEnd* front_end,
                                                           grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer& request);

  // TokenSink
  void OnTokens(absl::Span<const GeneratedToken> tokens) override;
  void OnFinish(const FinishInfo& info) override;

  // grpc::ServerWriteReactor
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  struct Ending {
    grpc::Status status;
    v1::Finish::Reason reason = v1::Finish::ERROR;
  };

  GenerateStream(FrontEnd* front_end, grpc::CallbackServerContext* context,
                 const grpc::ByteBuffer& request);

  // The job.
  void ScheduleJob() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunJob();
  absl::Status Prepare();
  void Deliver(absl::Span<const GeneratedToken> tokens);
  void Conclude(const FinishInfo& info);
  Ending EndingOf(const FinishInfo& info);
  bool AddText(absl::StatusOr<ResponseText::Delta> delta, v1::GenerateResponse* message);

  void Send(v1::GenerateResponse message);
  void End(const absl::Status& status, v1::Finish::Reason reason);
  bool DeadlinePassed() const;  // as the client sees it
  void Pump();                  // starts the next write, or Finish, when it is time
  void OnClientGone();
  void EndWork(FinishReason reason = FinishReason::kCancelled);
  void LimitDrain();

  // Constant after construction.
  FrontEnd* const front_end_;
  const absl::Time arrival_;
  const absl::Time deadline_;
  const size_t request_size_;  // bytes, as Admission counts them
  bool admitted_ = false;

  std::shared_ptr<GenerateStream> self_;  // from Start to OnDone, for gRPC

  // Owned by the job.
  grpc::ByteBuffer request_bytes_;
  bool prepared_ = false;
  std::string id_;  // the client's, or made for it; empty while no valid one is known
  size_t num_prompt_tokens_ = 0;
  bool claimed_ = false;
  bool with_logprobs_ = false;
  bool greeted_ = false;  // the first message is sent
  uint64_t sampling_seed_ = 0;
  absl::Time handed_over_;
  std::unique_ptr<ResponseText> text_;
  bool stopped_ = false;  // at stop_string_
  std::string stop_string_;
  absl::Status text_error_;

  // Owned by the write in flight.
  grpc::ByteBuffer write_buffer_;

  grpc::Alarm drain_alarm_;  // set once, by the job

  Mutex mu_;
  grpc::CallbackServerContext* context_ ABSL_GUARDED_BY(mu_);  // null after OnDone
  std::vector<GeneratedToken> inbox_ ABSL_GUARDED_BY(mu_);
  std::optional<FinishInfo> finish_info_ ABSL_GUARDED_BY(mu_);
  bool job_queued_ ABSL_GUARDED_BY(mu_) = false;  // or running
  std::string loop_id_ ABSL_GUARDED_BY(mu_);      // unique, set while the loop has the request
  v1::GenerateResponse outbox_ ABSL_GUARDED_BY(mu_);
  size_t outbox_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time outbox_since_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;   // Finish was called
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;  // the client left, or its deadline passed:
  bool expired_ ABSL_GUARDED_BY(mu_) = false;    // the latter
  bool overflowed_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<Ending> ending_ ABSL_GUARDED_BY(mu_);
};

}  // namespace latentd
