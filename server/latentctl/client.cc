#include "server/latentctl/client.h"

#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/grpcpp.h"
#include "latentd/v1/generation.grpc.pb.h"
#include "server/utf8.h"

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

// As the server says it, before protobuf writes a line of its own and sends the bytes all the same.
// `path` is that of the message, with a dot at its end.
absl::Status CheckStrings(const google::protobuf::Message& message, const std::string& path = "") {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string name = path + field->name();
    const int size = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < size; ++i) {
      if (field->type() == FieldDescriptor::TYPE_STRING) {
        const std::string text = field->is_repeated()
                                     ? reflection.GetRepeatedString(message, field, i)
                                     : reflection.GetString(message, field);
        const size_t bad = FirstBadUtf8(text);
        if (bad == text.size()) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("INVALID_ARGUMENT: a string is not UTF-8: ", name, ", byte ", bad));
      }
      if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
        RETURN_IF_ERROR(CheckStrings(field->is_repeated()
                                         ? reflection.GetRepeatedMessage(message, field, i)
                                         : reflection.GetMessage(message, field),
                                     name + "."));
      }
    }
  }
  return absl::OkStatus();
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

// Cancel and Watch call TryCancel under the lock: the context lives only until Watch(nullptr).
void Cancellation::Cancel() {
  MutexLock lock(&mu_);
  cancelled_ = true;
  if (context_ != nullptr) context_->TryCancel();
}

bool Cancellation::cancelled() const {
  MutexLock lock(&mu_);
  return cancelled_;
}

void Cancellation::Watch(grpc::ClientContext* context) {
  MutexLock lock(&mu_);
  context_ = context;
  if (context != nullptr && cancelled_) context->TryCancel();
}

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
                              const std::function<bool(const v1::GenerateResponse&)>& on_message,
                              Cancellation* cancellation) {
  RETURN_IF_ERROR(CheckStrings(request));
  grpc::ClientContext context;
  if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
  if (cancellation != nullptr) cancellation->Watch(&context);
  const absl::Cleanup over = [cancellation] {
    if (cancellation != nullptr) cancellation->Watch(nullptr);
  };
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
  RETURN_IF_ERROR(CheckStrings(request));
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
