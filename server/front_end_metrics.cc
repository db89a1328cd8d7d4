#include "server/front_end_metrics.h"

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/version.h"
#include "kernels/cache_layout.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace latentd {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

prometheus::Family<prometheus::Counter>& Counters(prometheus::Registry& registry, const char* name,
                                                  const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}
prometheus::Family<prometheus::Gauge>& Gauges(prometheus::Registry& registry, const char* name,
                                              const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}
prometheus::Family<prometheus::Histogram>& Histograms(prometheus::Registry& registry,
                                                      const char* name, const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

const Buckets& ShortSeconds() {
  static const Buckets buckets = {1e-4,  2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01,
                                  0.025, 0.05,   0.1,  0.25, 0.5,    1,    2.5};
  return buckets;
}
const Buckets& LongSeconds() {
  static const Buckets buckets = {1e-3, 5e-3, 0.01, 0.05, 0.1, 0.25, 0.5, 1,
                                  2.5,  5,    10,   25,   50,  100,  300, 600};
  return buckets;
}

// Values that hold for the life of the process.
void SetFacts(prometheus::Registry& registry, const ServedModel& model) {
  const EngineInfo& info = model.info;
  auto& per_token =
      Gauges(registry, "latentd_kv_bytes_per_token",
             "Bytes of cache that one token takes, scales and padding counted; full: uncompressed");
  per_token.Add({{"part", "k"}}).Set(info.k_bytes_per_token);
  per_token.Add({{"part", "v"}}).Set(info.v_bytes_per_token);
  per_token.Add({{"part", "total"}}).Set(info.bytes_per_token);
  per_token.Add({{"part", "full"}}).Set(info.full_bytes_per_token);
  Gauges(registry, "latentd_kv_compression_ratio",
         "Bytes of the uncompressed 16-bit cache over bytes of this one")
      .Add({})
      .Set(info.bytes_per_token > 0 ? info.full_bytes_per_token / info.bytes_per_token : 0);
  Gauges(registry, "latentd_model_info", "1, with the facts about the model as labels")
      .Add({{"name", info.model_name},
            {"family", info.family},
            {"device", info.device},
            {"cache", info.cache_name},
            {"max_context", absl::StrCat(info.max_context)}})
      .Set(1);
  Gauges(registry, "latentd_cache_config_info", "1, with the shape of the paged cache as labels")
      .Add({{"block_size", absl::StrCat(kBlockTokens)},
            {"num_gpu_blocks", absl::StrCat(info.num_blocks)}})
      .Set(1);
  Gauges(registry, "latentd_build_info", "1, with the version as label")
      .Add({{"version", kVersion}})
      .Set(1);
}

}  // namespace

std::string GrpcCodeName(int code) {
  return code == 0 ? "OK" : absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
}

struct FrontEndMetrics::Families {
  explicit Families(prometheus::Registry& r)
      : requests(
            Counters(r, "latentd_requests_total", "Generate calls that ended, each counted once")),
        rejected(Counters(r, "latentd_requests_rejected_total",
                          "Generate calls that were refused: those of the reason refused")),
        dropped(Counters(r, "latentd_stream_dropped_total", "Streams that the server gave up")),
        started(Counters(r, "grpc_server_started_total", "RPCs started")),
        handled(Counters(r, "grpc_server_handled_total", "RPCs ended")),
        handling(Histograms(r, "grpc_server_handling_seconds", "Time from start to end of an RPC")),
        cache_bytes(
            Gauges(r, "latentd_kv_bytes",
                   "Bytes of the cache by state: blocks, and what sequences keep beside them")),
        cache_used(cache_bytes.Add({{"state", "used"}})),
        cache_free(cache_bytes.Add({{"state", "free"}})),
        streams_open(Gauges(r, "latentd_streams_open", "Generate calls that are open").Add({})),
        tokenize(Histograms(r, "latentd_tokenize_seconds",
                            "Chat template and tokenizer, without waiting")
                     .Add({}, ShortSeconds())),
        backpressure(
            Histograms(r, "latentd_stream_backpressure_seconds", "Tokens waited for a slow client")
                .Add({}, LongSeconds())) {
    // Zeros from the start.
    for (const char* reason :
         {"invalid", "queue_full", "duplicate_id", "draining", "engine_dead", "error"}) {
      rejected.Add({{"reason", reason}});
    }
  }

  prometheus::Family<prometheus::Counter>& requests;
  prometheus::Family<prometheus::Counter>& rejected;
  prometheus::Family<prometheus::Counter>& dropped;
  prometheus::Family<prometheus::Counter>& started;
  prometheus::Family<prometheus::Counter>& handled;
  prometheus::Family<prometheus::Histogram>& handling;
  prometheus::Family<prometheus::Gauge>& cache_bytes;
  prometheus::Gauge& cache_used;
  prometheus::Gauge& cache_free;
  prometheus::Gauge& streams_open;
  prometheus::Histogram& tokenize;
  prometheus::Histogram& backpressure;
};

FrontEndMetrics::FrontEndMetrics(prometheus::Registry& registry, const ServedModel& model)
    : families_(std::make_unique<Families>(registry)) {
  SetFacts(registry, model);
}

FrontEndMetrics::~FrontEndMetrics() = default;

void FrontEndMetrics::OnRpcStarted(absl::string_view method) {
  families_->started.Add({{"grpc_method", std::string(method)}}).Increment();
}

void FrontEndMetrics::OnRpcDone(absl::string_view method, int code, absl::Duration duration) {
  const std::string name(method);
  families_->handled.Add({{"grpc_method", name}, {"grpc_code", GrpcCodeName(code)}}).Increment();
  families_->handling.Add({{"grpc_method", name}}, LongSeconds())
      .Observe(absl::ToDoubleSeconds(duration));
}

void FrontEndMetrics::OnRequestDone(int code, absl::string_view reason) {
  families_->requests.Add({{"code", GrpcCodeName(code)}, {"reason", std::string(reason)}})
      .Increment();
}

void FrontEndMetrics::OnRejected(absl::string_view reason) {
  families_->rejected.Add({{"reason", std::string(reason)}}).Increment();
}

void FrontEndMetrics::SetCacheBytes(int64_t used, int64_t total) {
  families_->cache_used.Set(static_cast<double>(used));
  families_->cache_free.Set(static_cast<double>(total - used));
}

void FrontEndMetrics::OnStreamOpened() { families_->streams_open.Increment(); }
void FrontEndMetrics::OnStreamClosed() { families_->streams_open.Decrement(); }

void FrontEndMetrics::OnTokenized(absl::Duration duration) {
  families_->tokenize.Observe(absl::ToDoubleSeconds(duration));
}

void FrontEndMetrics::OnBackpressure(absl::Duration waited) {
  families_->backpressure.Observe(absl::ToDoubleSeconds(waited));
}

void FrontEndMetrics::OnStreamDropped(absl::string_view reason) {
  families_->dropped.Add({{"reason", std::string(reason)}}).Increment();
}

}  // namespace latentd
