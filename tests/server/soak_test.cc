// Many streams at once with cancels, deadlines, resets and bad requests: afterwards nothing is in
// use, memory has not grown, and the server has counted what its clients saw. LATENTD_SOAK_SECONDS
// prolongs it.

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "tests/testing/server_fixture.h"
#include "tests/testing/tcp_relay.h"

namespace latentd {
namespace {

constexpr int kStreams = 64;
constexpr int kResetStreams = 8;  // of those, over the connection that is reset again and again

absl::Duration SoakTime() {
  int seconds = 3;
  const char* text = std::getenv("LATENTD_SOAK_SECONDS");
  LATENTD_CHECK(text == nullptr || absl::SimpleAtoi(text, &seconds));
  return absl::Seconds(seconds);
}

int64_t ResidentBytes() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * 4096;
}

struct Counts {
  std::map<std::string, int> by_code;
  int total = 0;
};

// One client's requests until `end`, each with its own fate drawn from (stream, number).
void RunStream(ServerFixture* fixture, Client* client, int stream, absl::Time end, Mutex* mu,
               Counts* counts) {
  for (uint64_t number = 0; absl::Now() < end; ++number) {
    const uint64_t draw = RandomBits(stream, number);
    v1::GenerateRequest request =
        TextRequest(std::string(1 + draw % 200, 'p') + absl::StrCat(stream),
                    1 + static_cast<int>(draw >> 8 & 63));
    absl::Duration timeout = absl::Seconds(30);
    int cancel_after = -1;
    switch (draw >> 16 & 7) {
      case 0:
        cancel_after = 1 + static_cast<int>(draw >> 24 & 15);
        request.set_max_tokens(2000);
        break;
      case 1:
        timeout = absl::Milliseconds(20 + static_cast<int>(draw >> 24 & 63));
        request.set_max_tokens(2000);
        break;
      case 2:
        request.mutable_sampling()->set_top_p(0);
        break;
      case 3:
        request.add_stop("<");
        break;
    }
    const Streamed streamed = fixture->Generate(request, timeout, cancel_after, client);
    MutexLock lock(mu);
    ++counts->by_code[absl::StatusCodeToString(streamed.status.code())];
    ++counts->total;
  }
}

TEST(SoakTest, AfterwardsNothingIsInUseAndTheCountersEqualTheClients) {
  ServerFixture fixture(
      {.engine = {.num_blocks = 1000, .on_step = SlowSteps(absl::Microseconds(200))},
       .limits = {.max_sequences = 32, .max_queued_requests = 24}});
  TcpRelay relay(fixture.server().address());
  Client reset_client(relay.address());
  Mutex mu;
  Counts counts, reset_counts;
  const absl::Duration time = SoakTime();
  const absl::Time begin = absl::Now();
  std::vector<std::thread> threads;
  for (int stream = 0; stream < kStreams; ++stream) {
    const bool reset = stream < kResetStreams;
    threads.emplace_back([&, stream, reset] {
      RunStream(&fixture, reset ? &reset_client : &fixture.client(), stream, begin + time, &mu,
                reset ? &reset_counts : &counts);
    });
  }
  int64_t resident = 0;  // once everything has been touched
  while (absl::Now() < begin + time) {
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    relay.Reset();
    if (resident == 0 && absl::Now() > begin + time / 2) resident = ResidentBytes();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(fixture.BecomesIdle());
  EXPECT_LT(ResidentBytes() - resident, int64_t{32} << 20);

  // A request that its client gave up, or that a reset cut off, while its end was on the way may
  // have another end for the server; one whose deadline or reset came before it was sent never
  // arrived. Everything else agrees exactly.
  const auto server = [&](const char* code) {
    return static_cast<int>(fixture.Metric("latentd_requests_total", "code", code));
  };
  const auto here = [&](const char* code) {
    return counts.by_code[code] + reset_counts.by_code[code];
  };
  const int cut_off = reset_counts.by_code["UNAVAILABLE"];
  const int gave_up = here("CANCELLED") + here("DEADLINE_EXCEEDED");
  const int refused = here("INVALID_ARGUMENT") + here("RESOURCE_EXHAUSTED");
  EXPECT_GE(server("INVALID_ARGUMENT") + server("RESOURCE_EXHAUSTED"), refused);
  EXPECT_LE(server("INVALID_ARGUMENT") + server("RESOURCE_EXHAUSTED"), refused + cut_off);
  EXPECT_GE(server("OK"), here("OK"));
  EXPECT_LE(server("OK"), here("OK") + cut_off + gave_up);
  const int total = counts.total + reset_counts.total;
  EXPECT_LE(fixture.Metric("latentd_requests_total"), total);
  EXPECT_GE(fixture.Metric("latentd_requests_total"), total - cut_off - here("DEADLINE_EXCEEDED"));
  EXPECT_GT(here("OK"), 0);
  EXPECT_GT(here("CANCELLED"), 0);
  EXPECT_GT(here("DEADLINE_EXCEEDED"), 0);
  EXPECT_GT(cut_off, 0);
  EXPECT_EQ(counts.by_code["UNAVAILABLE"] + here("INTERNAL") + here("UNKNOWN"), 0);
  EXPECT_EQ(fixture.Metric("latentd_streams_open"), 0);
  for (const auto& [code, count] : counts.by_code) RecordProperty(code, count);
}

}  // namespace
}  // namespace latentd
