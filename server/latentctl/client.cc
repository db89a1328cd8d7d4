#include "server/latentctl/client.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "latentd/v1/generation.grpc.pb.h"

namespace latentd {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;
constexpr absl::Duration kUnaryTimeout = absl::Seconds(30);

// The message begins with the code, which tells a user whether to retry, wait or mend the request.
absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  std::string message = absl::StrCat(absl::StatusCodeToString(code), ": ", status.error_message());
  if (absl::StrContains(message, "failed to connect"))
    absl::StrAppend(&message, "; does latentd run there? --target names another place");
  return absl::Status(code, message);
}

std::shared_ptr<grpc::Channel> Connect(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  // A server that vanished is noticed within 20 s.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

class Client::Stub {
 public:
  explicit Stub(const std::string& target) : stub(v1::Generation::NewStub(Connect(target))) {}

  template <class Request, class Response>
  absl::StatusOr<Response> Call(grpc::Status (v1::Generation::Stub::*method)(grpc::ClientContext*,
                                                                             const Request&,
                                                                             Response*),
                                const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kUnaryTimeout));
    Response response;
    const absl::Status status = FromGrpc(((*stub).*method)(&context, request, &response));
    if (!status.ok()) return status;
    return response;
  }

  const std::unique_ptr<v1::Generation::Stub> stub;
};

Client::Client(const std::string& target) : stub_(std::make_unique<Stub>(target)) {}
Client::~Client() = default;

absl::Status Client::Generate(const v1::GenerateRequest& request, absl::Time deadline,
                              const std::function<bool(const v1::GenerateResponse&)>& on_message) {
  grpc::ClientContext context;
  if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader =
      stub_->stub->Generate(&context, request);
  v1::GenerateResponse message;
  bool cancelled = false;
  while (reader->Read(&message)) {
    if (!cancelled && !on_message(message)) {
      cancelled = true;
      context.TryCancel();
    }
  }
  return FromGrpc(reader->Finish());
}

absl::StatusOr<v1::TokenizeResponse> Client::Tokenize(const v1::TokenizeRequest& request) {
  return stub_->Call(&v1::Generation::Stub::Tokenize, request);
}
absl::StatusOr<v1::DetokenizeResponse> Client::Detokenize(const v1::DetokenizeRequest& request) {
  return stub_->Call(&v1::Generation::Stub::Detokenize, request);
}
absl::StatusOr<v1::GetModelResponse> Client::GetModel() {
  return stub_->Call(&v1::Generation::Stub::GetModel, v1::GetModelRequest());
}
absl::StatusOr<v1::GetStatsResponse> Client::GetStats() {
  return stub_->Call(&v1::Generation::Stub::GetStats, v1::GetStatsRequest());
}

}  // namespace latentd
