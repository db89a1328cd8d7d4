#include "server/server.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/admission.h"
#include "server/front_end.h"
#include "server/front_end_metrics.h"
#include "server/generation_service.h"
#include "server/listen_address.h"
#include "server/text_workers.h"

namespace latentd {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;
constexpr char kServiceName[] = "latentd.v1.Generation";

// A peer that vanished is found within 20 s; a client may ping as often as every 5 s, with or
// without a call.
void SetKeepalive(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no limit on our own
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
}

}  // namespace

class Server::Parts {
 public:
  Parts(const Options& options, const ServedModel& model, const SchedulerConfig& limits,
        ServeLoop* loop, prometheus::Registry* registry, Clock* clock)
      : metrics(*registry, model),
        admission(limits.max_sequences + limits.max_queued_requests),
        workers(std::make_unique<TextWorkers>(options.text_workers)),
        service(&front_end) {
    std::random_device entropy;
    front_end.model = model;
    front_end.limits = limits;
    front_end.loop = loop;
    front_end.workers = workers.get();
    front_end.admission = &admission;
    front_end.metrics = &metrics;
    front_end.clock = clock;
    front_end.seed = (uint64_t{entropy()} << 32) | entropy();
    front_end.max_outbox_bytes = options.max_outbox_bytes;
    front_end.started = clock->Now();
  }

  void SetServing(bool serving) {
    grpc::HealthCheckServiceInterface* health = server->GetHealthCheckService();
    health->SetServingStatus(kServiceName, serving);
    health->SetServingStatus(serving);  // all services
  }

  FrontEndMetrics metrics;
  Admission admission;
  std::unique_ptr<TextWorkers> workers;
  FrontEnd front_end;
  GenerationService service;
  std::string address;
  std::unique_ptr<grpc::Server>
      server;  // the last, so the first to go: it waits for OnDone of every call
};

absl::StatusOr<std::unique_ptr<Server>> Server::Start(Options options, const ServedModel& model,
                                                      const SchedulerConfig& limits,
                                                      ServeLoop* loop,
                                                      prometheus::Registry* registry,
                                                      Clock* clock) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  const std::string listen = std::move(options.listen);
  auto parts = std::make_unique<Parts>(options, model, limits, loop, registry, clock);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&parts->service);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a second server on a port must fail
  SetKeepalive(&builder);
  parts->server = builder.BuildAndStart();
  if (parts->server == nullptr || port == 0) return CannotListen("--listen", listen);
  parts->address = absl::StrCat(listen.substr(0, listen.rfind(':')), ":", port);
  parts->SetServing(false);
  return std::unique_ptr<Server>(new Server(std::move(parts)));
}

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Server::~Server() { Stop(absl::Now()); }

const std::string& Server::address() const { return parts_->address; }

void Server::SetReady() {
  parts_->front_end.ready = true;
  parts_->SetServing(true);
}

bool Server::ready() const { return parts_->front_end.ready; }

void Server::RefuseNew() {
  parts_->front_end.ready = false;
  parts_->admission.Close();
  parts_->SetServing(false);
}

int Server::streams_open() const { return parts_->admission.open(); }

void Server::RefreshMetrics() {
  const ServeStats stats = parts_->front_end.loop->stats();
  parts_->metrics.SetCacheBytes(stats.cache_bytes_used, stats.cache_bytes_total);
}

void Server::Stop(absl::Time deadline) {
  RefuseNew();
  parts_->server->Shutdown(absl::ToChronoTime(deadline));
}

}  // namespace latentd
