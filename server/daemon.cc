#include "server/daemon.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/machine_memory.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"
#include "kernels/cache_layout.h"
#include "prometheus/registry.h"
#include "scheduler/metrics.h"
#include "scheduler/serve_loop.h"
#include "server/listen_address.h"
#include "server/metrics_page.h"
#include "server/server.h"
#include "server/warm_up.h"
#include "spdlog/spdlog.h"

namespace latentd {
namespace {

// A step takes this long at most while the engine is alive: a whole batch of prompt tokens on a
// slow machine.
constexpr absl::Duration kStuckAfter = absl::Seconds(30);
constexpr absl::Duration kLastWrites =
    absl::Seconds(5);  // for messages that were made before the end

int NumTextWorkers() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 2, 8);
}

std::string Size(int64_t bytes) { return FormatBytes(static_cast<double>(bytes)); }

void LogMemory(const EngineInfo& info) {
  const std::string factors =
      info.factor_bytes > 0 ? absl::StrCat(", factors ", Size(info.factor_bytes)) : "";
  spdlog::info("memory: weights {}{}, cache {}", Size(info.weight_bytes), factors,
               Size(info.pool_bytes));
  if (info.device_bytes > 0) {
    spdlog::info("memory: {} of the device's {} were in use beside the cache",
                 Size(info.device_bytes_used), Size(info.device_bytes));
  }
}

void LogCache(const EngineInfo& info) {
  const double tokens = static_cast<double>(info.num_blocks) * kBlockTokens;
  const double seats = info.num_sequences * info.bytes_per_sequence;
  const auto bytes = static_cast<double>(info.pool_bytes);
  spdlog::info(
      "cache: {}, {} per token (uncompressed {}, ratio {:.2f}); {} holds {:.0f} tokens "
      "(uncompressed {:.0f})",
      info.cache_name, FormatBytes(info.bytes_per_token), FormatBytes(info.full_bytes_per_token),
      info.full_bytes_per_token / info.bytes_per_token, FormatBytes(bytes), tokens,
      bytes / info.full_bytes_per_token);
  if (seats > 0) {
    spdlog::info("cache: {} of that for {} sequences at once, {} each", FormatBytes(seats),
                 info.num_sequences, FormatBytes(info.bytes_per_sequence));
  }
  const auto memory = static_cast<double>(MachineMemory());
  if (info.device_bytes == 0 && bytes > memory) {
    spdlog::warn("cache: it may grow to {}, but this machine has {} of memory", FormatBytes(bytes),
                 FormatBytes(memory));
  }
}

void LogDrain(int open, absl::Time deadline) {
  if (open == 0) return;
  spdlog::info(
      "draining: open requests ({}) have until {} (--drain-seconds), new ones are refused; a "
      "second signal ends them at once",
      open, absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", deadline, absl::UTCTimeZone()));
}

}  // namespace

class Daemon::Parts {
 public:
  absl::Status Start(const ServerConfig& config, std::function<void()> on_engine_dead);

  ~Parts() {
    page_.reset();  // before the server and the loop that its probes look at
    server_.reset();
    loop_.reset();
  }

  void Drain(absl::Time deadline) {
    ready_ = false;
    server_->RefuseNew();
    const bool alive = loop_->stats().engine_status.ok();
    if (alive && deadline > absl::Now()) LogDrain(server_->streams_open(), deadline);
    const int ended = loop_->Drain(deadline);
    if (ended > 0) spdlog::warn("drain: the time is up, {} requests are ended", ended);
    server_->Stop(absl::Now() + kLastWrites);
  }

  void EndRequests() {
    const int ended = loop_->Drain(absl::InfinitePast());
    if (ended > 0) spdlog::warn("drain: {} requests are ended", ended);
  }

 private:
  absl::Status StartPage(const ServerConfig& config);
  absl::Status Load(const ServerConfig& config);
  absl::Status Live() const;

  SystemClock clock_;
  prometheus::Registry registry_;
  std::unique_ptr<MetricsPage> page_;
  OpenedModel model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_template_;
  std::unique_ptr<SchedulerMetrics> metrics_;
  std::unique_ptr<ServeLoop> loop_;
  std::unique_ptr<Server> server_;

  // What the probes see, while the rest still starts.
  std::atomic<const ServeLoop*> started_loop_{nullptr};
  std::atomic<Server*> started_server_{nullptr};
  std::atomic<bool> ready_{false};
};

absl::Status Daemon::Parts::Live() const {
  const ServeLoop* loop = started_loop_;
  if (loop == nullptr) return absl::OkStatus();
  const ServeStats stats = loop->stats();
  RETURN_IF_ERROR(stats.engine_status);
  const absl::Duration age = clock_.Now() - stats.last_step;
  if (stats.running + stats.waiting == 0 || age < kStuckAfter) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the engine has not finished a step for ", absl::FormatDuration(age), ", with ",
                   stats.running + stats.waiting, " requests waiting for it"));
}

absl::Status Daemon::Parts::StartPage(const ServerConfig& config) {
  if (config.metrics_listen == "off") return absl::OkStatus();
  MetricsPage::Probes probes = {
      .before_metrics =
          [this] {
            if (Server* server = started_server_; server != nullptr) server->RefreshMetrics();
          },
      .live = [this] { return Live(); },
      .ready = [this] { return ready_ ? absl::OkStatus() : absl::UnavailableError("not ready"); }};
  ASSIGN_OR_RETURN(page_, MetricsPage::Start(config.metrics_listen, &registry_, std::move(probes)));
  return absl::OkStatus();
}

absl::Status Daemon::Parts::Load(const ServerConfig& config) {
  const absl::Time begin = clock_.Now();
  spdlog::info("model: opening {}", config.model.model);
  ASSIGN_OR_RETURN(model_, OpenModel(config.model, config.scheduler.max_sequences,
                                     config.scheduler.max_batch_tokens));
  const TokenizerSource& source = model_.checkpoint->tokenizer();
  ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Create(source));
  absl::StatusOr<std::unique_ptr<ChatTemplate>> chat_template = ChatTemplate::Create(source);
  if (chat_template.ok()) {
    chat_template_ = *std::move(chat_template);
  } else if (absl::IsFailedPrecondition(chat_template.status())) {
    spdlog::info("model: no chat template, so prompts are text or token ids");
  } else {
    return chat_template.status();
  }
  const EngineInfo& info = model_.engine->info();
  spdlog::info(
      "model: {}, {}, {} layers, {} of weights ({}), context {}, on {}; loaded in {:.1f} s",
      info.model_name, info.family, info.num_layers, Size(info.weight_bytes), info.weight_type,
      info.max_context, info.device, absl::ToDoubleSeconds(clock_.Now() - begin));
  if (!info.decode_kernels.empty()) {
    spdlog::info("attention: decode steps by {}", info.decode_kernels);
  }
  return absl::OkStatus();
}

absl::Status Daemon::Parts::Start(const ServerConfig& config,
                                  std::function<void()> on_engine_dead) {
  spdlog::info("{}", kVersion);
  RETURN_IF_ERROR(StartPage(config));
  RETURN_IF_ERROR(CheckListen("--listen", config.listen));  // now, not after all of the load
  RETURN_IF_ERROR(Load(config));
  const EngineInfo& info = model_.engine->info();
  LogMemory(info);
  LogCache(info);
  const int wanted = config.model.max_context > 0 ? config.model.max_context
                                                  : model_.checkpoint->config().max_context;
  if (info.max_context < wanted) {
    spdlog::warn(
        "context: {} tokens in place of {}, for the cache holds no more; raise {}, or lower "
        "--max-sequences, each of which keeps {} beside its blocks",
        info.max_context, wanted,
        info.device_bytes > 0 ? "--cache-bytes or --cache-fraction" : "--cache-bytes",
        FormatBytes(info.bytes_per_sequence));
  }

  ASSIGN_OR_RETURN(const WarmUpTimes times, WarmUp(model_.engine.get(), &clock_));
  spdlog::info("warm-up: first token after {:.0f} ms, {:.0f} ms in all",
               absl::ToDoubleMilliseconds(times.first_token),
               absl::ToDoubleMilliseconds(times.total));

  metrics_ = std::make_unique<SchedulerMetrics>(registry_);
  ASSIGN_OR_RETURN(loop_, ServeLoop::Start(model_.engine.get(), config.scheduler, metrics_.get(),
                                           &clock_, std::move(on_engine_dead)));
  started_loop_ = loop_.get();
  const ServedModel served =
      MakeServedModel(info, model_.checkpoint->config(), tokenizer_.get(), chat_template_.get());
  ASSIGN_OR_RETURN(
      server_, Server::Start({.listen = config.listen, .text_workers = NumTextWorkers()}, served,
                             config.scheduler, loop_.get(), &registry_, &clock_));
  started_server_ = server_.get();
  server_->SetReady();
  ready_ = true;
  spdlog::info(
      "ready: gRPC on {}{}", server_->address(),
      page_ == nullptr ? "" : absl::StrCat(", metrics on http://", page_->address(), "/metrics"));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const ServerConfig& config,
                                                      std::function<void()> on_engine_dead) {
  auto parts = std::make_unique<Parts>();
  RETURN_IF_ERROR(parts->Start(config, std::move(on_engine_dead)));
  return std::unique_ptr<Daemon>(new Daemon(std::move(parts)));
}

Daemon::Daemon(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Daemon::~Daemon() = default;

void Daemon::Drain(absl::Time deadline) { parts_->Drain(deadline); }
void Daemon::EndRequests() { parts_->EndRequests(); }

}  // namespace latentd
