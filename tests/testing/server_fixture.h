#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "prometheus/registry.h"
#include "scheduler/metrics.h"
#include "scheduler/serve_loop.h"
#include "server/latentctl/client.h"
#include "server/server.h"
#include "tests/testing/fake_engine.h"
#include "tests/testing/fake_text.h"

namespace latentd {

// One stream as its client saw it.
struct Streamed {
  std::vector<v1::GenerateResponse> messages;
  std::string text;
  std::vector<int32_t> token_ids;
  absl::Status status;

  bool has_finish() const { return !messages.empty() && messages.back().has_finish(); }
  v1::Finish::Reason reason() const {
    return has_finish() ? messages.back().finish().reason() : v1::Finish::REASON_UNSPECIFIED;
  }
};

// A server in this process on a free port of 127.0.0.1, over a FakeEngine and a FakeTokenizer.
class ServerFixture {
 public:
  struct Options {
    FakeEngine::Options engine;
    SchedulerConfig limits;
    size_t max_outbox_bytes = size_t{4} << 20;
  };
  explicit ServerFixture(Options options);
  ServerFixture() : ServerFixture(Options()) {}
  ~ServerFixture();

  Server& server() { return *server_; }
  ServeLoop& loop() { return *loop_; }
  Client& client() { return *client_; }
  const FakeTokenizer& tokenizer() const { return tokenizer_; }
  int engine_deaths() const { return engine_deaths_; }

  // Generates; cancels after `cancel_after` tokens when that is not negative. `client` null:
  // client().
  Streamed Generate(const v1::GenerateRequest& request,
                    absl::Duration timeout = absl::InfiniteDuration(), int cancel_after = -1,
                    Client* client = nullptr);

  // The sum of a family's values in the registry over all children whose labels hold these.
  double Metric(const std::string& name, const std::string& label = "",
                const std::string& value = "");

  // Whether the server becomes idle within a second: no stream open, nothing running or waiting, no
  // block in use.
  bool BecomesIdle();

 private:
  SystemClock clock_;
  prometheus::Registry registry_;
  FakeEngine engine_;
  FakeTokenizer tokenizer_;
  FakeChatTemplate chat_template_;
  SchedulerMetrics metrics_{registry_};
  std::atomic<int> engine_deaths_{0};
  std::unique_ptr<ServeLoop> loop_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

// A request for `max_tokens` tokens after a text, drawn greedily, end-of-sequence ignored.
v1::GenerateRequest TextRequest(const std::string& text, int max_tokens);

// Whether the condition holds within the time.
bool ComesTrue(const std::function<bool()>& condition, absl::Duration time = absl::Seconds(20));

// A step that takes so long.
std::function<absl::Status(int64_t, const Batch&)> SlowSteps(absl::Duration duration);

}  // namespace latentd
