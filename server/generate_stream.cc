#include "server/generate_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "grpcpp/server_context.h"
#include "scheduler/admission.h"
#include "server/encode_prompt.h"
#include "server/request_end.h"

namespace latentd {
namespace {

constexpr absl::Duration kDrainTime = absl::Seconds(60);
constexpr absl::Duration kClientsLead = absl::Milliseconds(20);

// gRPC's "no deadline" is the clock's far end, which absl does not take for infinite.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateStream::Start(
    FrontEnd* front_end, grpc::CallbackServerContext* context, const grpc::ByteBuffer& request) {
  front_end->metrics->OnRpcStarted(kGenerateMethod);
  std::shared_ptr<GenerateStream> stream(new GenerateStream(front_end, context, request));
  stream->self_ = stream;
  GenerateStream* const reactor = stream.get();
  const absl::Status admitted = front_end->admission->Enter(stream->request_size_);
  if (!admitted.ok()) {
    stream->End(admitted, v1::Finish::REASON_UNSPECIFIED);
    return reactor;
  }
  stream->admitted_ = true;
  front_end->metrics->OnStreamOpened();
  {
    MutexLock lock(&stream->mu_);
    stream->job_queued_ = true;
  }
  front_end->workers->SubmitPrompt([stream = std::move(stream)] { stream->RunJob(); });
  return reactor;
}

GenerateStream::GenerateStream(FrontEnd* front_end, grpc::CallbackServerContext* context,
                               const grpc::ByteBuffer& request)
    : front_end_(front_end),
      arrival_(front_end->clock->Now()),
      deadline_(DeadlineOf(*context)),
      request_size_(request.Length()),
      request_bytes_(request),
      context_(context) {}

void GenerateStream::OnTokens(absl::Span<const GeneratedToken> tokens) {
  MutexLock lock(&mu_);
  inbox_.insert(inbox_.end(), tokens.begin(), tokens.end());
  ScheduleJob();
}

void GenerateStream::OnFinish(const FinishInfo& info) {
  MutexLock lock(&mu_);
  finish_info_ = info;
  loop_id_.clear();
  ScheduleJob();
}

void GenerateStream::ScheduleJob() {
  if (job_queued_) return;
  job_queued_ = true;
  front_end_->workers->Submit([self = shared_from_this()] { self->RunJob(); });
}

void GenerateStream::RunJob() {
  if (!prepared_) {
    prepared_ = true;
    const absl::Status status = Prepare();
    if (!status.ok()) return End(status, v1::Finish::REASON_UNSPECIFIED);
  }
  for (;;) {
    std::vector<GeneratedToken> tokens;
    std::optional<FinishInfo> info;
    {
      MutexLock lock(&mu_);
      if (inbox_.empty() && !finish_info_.has_value()) {
        job_queued_ = false;
        return;
      }
      tokens.swap(inbox_);
      info.swap(finish_info_);
    }
    if (!tokens.empty()) Deliver(tokens);
    if (info.has_value()) return Conclude(*info);  // job_queued_ stays: there is no later job
  }
}

absl::Status GenerateStream::Prepare() {
  {
    MutexLock lock(&mu_);
    if (cancelled_) return absl::CancelledError("the client left before its prompt was read");
  }
  const absl::Time begin = front_end_->clock->Now();
  v1::GenerateRequest message;
  RETURN_IF_ERROR(ParseMessage(request_bytes_, &message));
  request_bytes_.Clear();
  const uint64_t number = front_end_->next_request++;
  const ServedModel& model = front_end_->model;
  ASSIGN_OR_RETURN(
      id_, RequestId(message,
                     absl::StrCat("request-", absl::Hex(RandomBits(front_end_->seed, number)))));
  ASSIGN_OR_RETURN(GenerateInput input,
                   FromProto(message, model, RandomBits(~front_end_->seed, number)));
  ASSIGN_OR_RETURN(EncodedPrompt prompt,
                   EncodePrompt(std::move(input.prompt), /*add_special=*/true, model));
  if (prompt.tokens.empty()) {
    return absl::InvalidArgumentError("the prompt has 0 tokens, but needs 1 or more");
  }
  num_prompt_tokens_ = prompt.tokens.size();
  front_end_->metrics->OnTokenized(front_end_->clock->Now() - begin);

  RETURN_IF_ERROR(front_end_->admission->Claim(id_));
  claimed_ = true;
  with_logprobs_ = input.sampling.num_logprobs >= 0;
  sampling_seed_ = input.sampling.seed;
  text_ = std::make_unique<ResponseText>(model.tokenizer, prompt.tokens, input.stop);

  auto request = std::make_shared<Request>();
  // Unique for ever, so that a late cancel cannot meet a later request of the client's same id.
  request->id = absl::StrCat(id_, "/", number);
  // At least 1: the loop then refuses a prompt that does not fit, in its words.
  request->max_new_tokens = input.max_tokens.value_or(
      std::max({1, input.stop.min_tokens,
                MostNewTokens(model.info, static_cast<int64_t>(prompt.tokens.size()))}));
  request->prompt = std::move(prompt.tokens);
  request->sampling = input.sampling;
  request->min_new_tokens = input.stop.min_tokens;
  request->stop_token_ids = std::move(input.stop.token_ids);
  request->arrival = handed_over_ = front_end_->clock->Now();
  request->deadline = deadline_;
  request->sink = shared_from_this();
  const std::string loop_id = request->id;
  RETURN_IF_ERROR(front_end_->loop->Add(std::move(request)));
  bool left = false;
  {
    MutexLock lock(&mu_);
    if (!finish_info_.has_value()) loop_id_ = loop_id;
    left = cancelled_;
  }
  if (left) front_end_->loop->Cancel(loop_id);
  return absl::OkStatus();
}

// Puts the delta into the message and notes a stop; false when the text ends here.
bool GenerateStream::AddText(absl::StatusOr<ResponseText::Delta> delta,
                             v1::GenerateResponse* message) {
  if (!delta.ok()) {
    text_error_ =
        absl::InternalError(absl::StrCat("the tokens have no text: ", delta.status().message()));
    return false;
  }
  message->mutable_text()->append(delta->text);
  if (!delta->stopped) return true;
  stopped_ = true;
  if (!delta->stop_string.empty()) stop_string_ = std::move(delta->stop_string);
  return false;
}

void GenerateStream::Deliver(absl::Span<const GeneratedToken> tokens) {
  if (stopped_ || !text_error_.ok()) return;
  v1::GenerateResponse message;
  bool goes_on = true;
  for (const GeneratedToken& token : tokens) {
    AddToken(token, with_logprobs_, &message);
    goes_on = AddText(text_->Push(token.id), &message);
    if (!goes_on) break;
  }
  Send(std::move(message));
  if (!goes_on) EndWork(stopped_ ? FinishReason::kStop : FinishReason::kCancelled);
}

void GenerateStream::Conclude(const FinishInfo& info) {
  v1::GenerateResponse message;
  if (!stopped_ && text_error_.ok()) AddText(text_->Flush(), &message);
  const Ending ending = EndingOf(info);
  FillFinish(info, ending.reason, text_->num_tokens(),
             {.tokenize = handed_over_ - arrival_, .total = front_end_->clock->Now() - arrival_},
             front_end_->model, message.mutable_finish());
  message.mutable_finish()->set_seed(sampling_seed_);
  message.mutable_finish()->set_stop_string(stop_string_);
  Send(std::move(message));
  front_end_->admission->Release(id_);
  claimed_ = false;
  {
    MutexLock lock(&mu_);
    ending_ = ending;
  }
  Pump();
  LimitDrain();
}

GenerateStream::Ending GenerateStream::EndingOf(const FinishInfo& info) {
  bool overflowed, left, expired;
  {
    MutexLock lock(&mu_);
    overflowed = overflowed_;
    left = cancelled_;
    expired = expired_;
  }
  if (!text_error_.ok()) return {ToGrpc(text_error_), v1::Finish::ERROR};
  if (overflowed) {
    return {ToGrpc(absl::ResourceExhaustedError(
                absl::StrCat("the client reads too slowly: more than ",
                             front_end_->max_outbox_bytes, " bytes wait for it"))),
            v1::Finish::ERROR};
  }
  if (stopped_) return {grpc::Status::OK, v1::Finish::STOP_STRING};
  switch (info.reason) {
    case FinishReason::kStop:
      return {grpc::Status::OK, v1::Finish::STOP};
    case FinishReason::kLength:
      return {grpc::Status::OK, v1::Finish::LENGTH};
    case FinishReason::kError:
      return {ToGrpc(info.status), v1::Finish::ERROR};
    case FinishReason::kDeadline:
    case FinishReason::kCancelled:
      break;
  }
  if (info.reason == FinishReason::kDeadline || (left ? expired : DeadlinePassed())) {
    return {ToGrpc(absl::DeadlineExceededError("the request's deadline passed")),
            v1::Finish::DEADLINE};
  }
  if (left) return {ToGrpc(absl::CancelledError("the client left")), v1::Finish::CANCELLED};
  return {ToGrpc(absl::UnavailableError(
              absl::StrCat("the server is shutting down and ended this request after ",
                           text_->num_tokens(), " tokens"))),
          v1::Finish::CANCELLED};
}

void GenerateStream::Send(v1::GenerateResponse message) {
  if (!greeted_) message.set_request_id(id_);
  greeted_ = true;
  bool overflowed = false;
  {
    MutexLock lock(&mu_);
    if (cancelled_ || overflowed_) return;
    if (outbox_bytes_ == 0) outbox_since_ = front_end_->clock->Now();
    outbox_bytes_ += message.ByteSizeLong();
    Merge(std::move(message), &outbox_);
    if (outbox_bytes_ > front_end_->max_outbox_bytes) {
      overflowed = overflowed_ = true;
      outbox_.Clear();
      outbox_bytes_ = 0;
    }
  }
  if (overflowed) {
    front_end_->metrics->OnStreamDropped("slow_reader");
    return EndWork();
  }
  Pump();
}

void GenerateStream::End(const absl::Status& status, v1::Finish::Reason reason) {
  if (claimed_) front_end_->admission->Release(id_);
  claimed_ = false;
  {
    MutexLock lock(&mu_);
    ending_ = Ending{ToGrpc(status), reason};
  }
  Pump();
}

void GenerateStream::Pump() {
  v1::GenerateResponse message;
  grpc::Status status;
  {
    MutexLock lock(&mu_);
    if (writing_ || finished_) return;
    if (outbox_bytes_ > 0) {
      message.Swap(&outbox_);
      outbox_bytes_ = 0;
      writing_ = true;
    } else if (ending_.has_value()) {
      finished_ = true;
      status = ending_->status;
    } else {
      return;
    }
  }
  // The flags set above make this thread the only one here.
  if (message.ByteSizeLong() > 0) {
    write_buffer_ = SerializeMessage(message);
    StartWrite(&write_buffer_);
  } else {
    Finish(status);
  }
}

void GenerateStream::OnWriteDone(bool ok) {
  if (!ok) OnClientGone();  // before the next write could start
  absl::Duration waited;
  {
    MutexLock lock(&mu_);
    writing_ = false;
    if (outbox_bytes_ > 0) waited = front_end_->clock->Now() - outbox_since_;
  }
  if (waited > absl::ZeroDuration()) front_end_->metrics->OnBackpressure(waited);
  Pump();
}

void GenerateStream::OnCancel() { OnClientGone(); }

// Whichever of a failed write and the cancel comes first decides how the request ended.
void GenerateStream::OnClientGone() {
  const bool expired = DeadlinePassed();
  {
    MutexLock lock(&mu_);
    if (cancelled_) return;
    cancelled_ = true;
    expired_ = expired;
    outbox_.Clear();
    outbox_bytes_ = 0;
  }
  if (!expired) EndWork();  // else the loop counts it as expired
}

// The client's timer began before ours: who sees it run out cancels up to kClientsLead earlier.
bool GenerateStream::DeadlinePassed() const {
  return front_end_->clock->Now() + kClientsLead >= deadline_;
}

void GenerateStream::EndWork(FinishReason reason) {
  std::string id;
  {
    MutexLock lock(&mu_);
    id = loop_id_;
  }
  if (!id.empty()) front_end_->loop->Cancel(id, reason);
}

// A client that is connected but does not read would hold its place for ever.
void GenerateStream::LimitDrain() {
  {
    MutexLock lock(&mu_);
    if (finished_) return;
  }
  drain_alarm_.Set(absl::ToChronoTime(absl::Now() + kDrainTime),
                   [weak = weak_from_this()](bool fired) {
                     const std::shared_ptr<GenerateStream> self = weak.lock();
                     if (!fired || self == nullptr) return;
                     self->front_end_->metrics->OnStreamDropped("not_read");
                     // The context may not go meanwhile. OnCancel comes only after this returns.
                     MutexLock lock(&self->mu_);
                     if (self->context_ != nullptr) self->context_->TryCancel();
                   });
}

void GenerateStream::OnDone() {
  int code;
  v1::Finish::Reason reason;
  {
    MutexLock lock(&mu_);
    context_ = nullptr;
    LATENTD_CHECK(ending_.has_value());  // gRPC calls this after Finish
    code = ending_->status.error_code();
    reason = ending_->reason;
    // The client never saw how it ended.
    if (cancelled_) {
      const bool late = expired_ || reason == v1::Finish::DEADLINE;
      code = late ? grpc::StatusCode::DEADLINE_EXCEEDED : grpc::StatusCode::CANCELLED;
      reason = late ? v1::Finish::DEADLINE : v1::Finish::CANCELLED;
    }
  }
  ReportEnd({.id = id_,
             .prompt_tokens = num_prompt_tokens_,
             .generated_tokens = text_ == nullptr ? 0 : text_->num_tokens(),
             .code = code,
             .reason = reason,
             .duration = front_end_->clock->Now() - arrival_},
            front_end_);
  if (admitted_) {
    front_end_->metrics->OnStreamClosed();
    // The last: whoever sees the server idle finds it counted.
    front_end_->admission->Leave(request_size_);
  }
  const std::shared_ptr<GenerateStream> last = std::move(self_);  // a job may still hold another
}

}  // namespace latentd
