#include "server/generation_service.h"

#include <functional>
#include <utility>

#include "base/status_macros.h"
#include "server/convert.h"
#include "server/encode_prompt.h"
#include "server/generate_stream.h"

namespace latentd {
namespace {

// One unary RPC: runs `work`, on a text worker where it `takes_time`, and finishes with its status.
// Deletes itself. `request_size` in bytes.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  using Work = std::function<absl::Status()>;

  static UnaryCall* Start(FrontEnd* front_end, const char* method, bool takes_time,
                          size_t request_size, Work work) {
    auto* call = new UnaryCall(front_end, method, request_size);
    if (!takes_time) {
      call->Finish(work());
      return call;
    }
    const absl::Status admitted = front_end->admission->Enter(request_size);
    if (!admitted.ok()) {
      call->Finish(admitted);
      return call;
    }
    call->admitted_ = true;
    front_end->workers->SubmitPrompt([call, work = std::move(work)] { call->Finish(work()); });
    return call;
  }

  void OnDone() override {
    front_end_->metrics->OnRpcDone(method_, code_, front_end_->clock->Now() - arrival_);
    if (admitted_) front_end_->admission->Leave(request_size_);
    delete this;
  }

 private:
  UnaryCall(FrontEnd* front_end, const char* method, size_t request_size)
      : front_end_(front_end),
        method_(method),
        request_size_(request_size),
        arrival_(front_end->clock->Now()) {
    front_end_->metrics->OnRpcStarted(method_);
  }

  void Finish(const absl::Status& status) {
    const grpc::Status grpc_status = ToGrpc(status);
    code_ = grpc_status.error_code();
    ServerUnaryReactor::Finish(grpc_status);
  }

  FrontEnd* const front_end_;
  const char* const method_;
  const size_t request_size_;
  const absl::Time arrival_;
  bool admitted_ = false;
  int code_ = 0;
};

absl::Status TokenizeTo(const ServedModel& model, const grpc::ByteBuffer& request,
                        grpc::ByteBuffer* response) {
  v1::TokenizeRequest message;
  RETURN_IF_ERROR(ParseMessage(request, &message));
  ASSIGN_OR_RETURN(Prompt prompt, FromProto(message, model));
  ASSIGN_OR_RETURN(EncodedPrompt encoded, EncodePrompt(std::move(prompt), !message.plain(), model));
  v1::TokenizeResponse tokens;
  tokens.mutable_token_ids()->Assign(encoded.tokens.begin(), encoded.tokens.end());
  tokens.set_rendered(std::move(encoded.rendered));
  *response = SerializeMessage(tokens);
  return absl::OkStatus();
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerationService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return GenerateStream::Start(front_end_, context, *request);
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(grpc::CallbackServerContext*,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* response) {
  return UnaryCall::Start(front_end_, "Tokenize", /*takes_time=*/true, request->Length(),
                          [=, this] { return TokenizeTo(front_end_->model, *request, response); });
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(grpc::CallbackServerContext*,
                                                        const v1::DetokenizeRequest* request,
                                                        v1::DetokenizeResponse* response) {
  return UnaryCall::Start(
      front_end_, "Detokenize", /*takes_time=*/true, request->ByteSizeLong(),
      [=, this]() -> absl::Status {
        ASSIGN_OR_RETURN(std::vector<int32_t> ids, FromProto(*request, front_end_->model));
        ASSIGN_OR_RETURN(*response->mutable_text(),
                         front_end_->model.tokenizer->Decode(ids, request->skip_special()));
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* GenerationService::GetModel(grpc::CallbackServerContext*,
                                                      const v1::GetModelRequest*,
                                                      v1::GetModelResponse* response) {
  return UnaryCall::Start(front_end_, "GetModel", /*takes_time=*/false, /*request_size=*/0,
                          [=, this] {
                            FillModel(front_end_->model, front_end_->limits, response);
                            return absl::OkStatus();
                          });
}

grpc::ServerUnaryReactor* GenerationService::GetStats(grpc::CallbackServerContext*,
                                                      const v1::GetStatsRequest*,
                                                      v1::GetStatsResponse* response) {
  return UnaryCall::Start(
      front_end_, "GetStats", /*takes_time=*/false, /*request_size=*/0, [=, this] {
        FillStats(front_end_->loop->stats(), front_end_->model, response);
        response->set_uptime_seconds(
            absl::ToDoubleSeconds(front_end_->clock->Now() - front_end_->started));
        response->set_ready(front_end_->ready);
        response->set_draining(front_end_->admission->closed());
        response->set_streams_open(front_end_->admission->open());
        return absl::OkStatus();
      });
}

}  // namespace latentd
