#include "tests/testing/server_fixture.h"

#include <algorithm>
#include <thread>

#include "absl/time/clock.h"
#include "base/check.h"

namespace latentd {

ServerFixture::ServerFixture(Options options)
    : engine_(options.engine), tokenizer_(options.engine.vocab_size) {
  auto loop =
      ServeLoop::Start(&engine_, options.limits, &metrics_, &clock_, [this] { ++engine_deaths_; });
  LATENTD_CHECK(loop.ok());
  loop_ = *std::move(loop);
  ModelConfig config;
  config.name = "fake";
  config.vocab_size = options.engine.vocab_size;
  config.eos_token_ids = {tokenizer_.eos()};
  const ServedModel model = MakeServedModel(engine_.info(), config, &tokenizer_, &chat_template_);
  auto server = Server::Start(
      {.listen = "127.0.0.1:0", .text_workers = 2, .max_outbox_bytes = options.max_outbox_bytes},
      model, options.limits, loop_.get(), &registry_, &clock_);
  LATENTD_CHECK(server.ok());
  server_ = *std::move(server);
  server_->SetReady();
  client_ = std::make_unique<Client>(server_->address());
}

ServerFixture::~ServerFixture() {
  client_.reset();
  server_.reset();
  loop_.reset();
}

Streamed ServerFixture::Generate(const v1::GenerateRequest& request, absl::Duration timeout,
                                 int cancel_after, Client* client) {
  Streamed streamed;
  streamed.status =
      (client != nullptr ? client : client_.get())
          ->Generate(request, absl::Now() + timeout, [&](const v1::GenerateResponse& message) {
            streamed.messages.push_back(message);
            streamed.text += message.text();
            streamed.token_ids.insert(streamed.token_ids.end(), message.token_ids().begin(),
                                      message.token_ids().end());
            return cancel_after < 0 || static_cast<int>(streamed.token_ids.size()) < cancel_after;
          });
  return streamed;
}

double ServerFixture::Metric(const std::string& name, const std::string& label,
                             const std::string& value) {
  double sum = 0;
  for (const prometheus::MetricFamily& family : registry_.Collect()) {
    if (family.name != name) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      const bool matches =
          label.empty() ||
          std::any_of(metric.label.begin(), metric.label.end(),
                      [&](const auto& l) { return l.name == label && l.value == value; });
      if (matches)
        sum += metric.counter.value + metric.gauge.value +
               static_cast<double>(metric.histogram.sample_count);
    }
  }
  return sum;
}

bool ServerFixture::BecomesIdle() {
  const auto idle = [this] {
    const ServeStats stats = loop_->stats();
    return server_->streams_open() == 0 && stats.running == 0 && stats.waiting == 0 &&
           stats.blocks_used == 0;
  };
  return ComesTrue(idle, absl::Seconds(1));
}

bool ComesTrue(const std::function<bool()>& condition, absl::Duration time) {
  const absl::Time deadline = absl::Now() + time;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

v1::GenerateRequest TextRequest(const std::string& text, int max_tokens) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.set_max_tokens(max_tokens);
  request.mutable_sampling()->set_temperature(0);
  request.set_ignore_eos(true);
  return request;
}

std::function<absl::Status(int64_t, const Batch&)> SlowSteps(absl::Duration duration) {
  return [duration](int64_t, const Batch&) {
    std::this_thread::sleep_for(absl::ToChronoMicroseconds(duration));
    return absl::OkStatus();
  };
}

}  // namespace latentd
