// Many streams at once with cancels, deadlines and bad requests: afterwards nothing is in use, and
// the server has counted what its clients saw. LATENTD_SOAK_SECONDS prolongs it.

#include <cstdlib>
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

namespace latentd {
namespace {

constexpr int kStreams = 64;

int SoakSeconds() {
  int seconds = 3;
  const char* text = std::getenv("LATENTD_SOAK_SECONDS");
  LATENTD_CHECK(text == nullptr || absl::SimpleAtoi(text, &seconds));
  return seconds;
}

struct Counts {
  std::map<std::string, int> by_code;
  int total = 0;
};

// One client's requests until `end`, each with its own fate drawn from (stream, number).
void RunStream(ServerFixture* fixture, int stream, absl::Time end, Mutex* mu, Counts* counts) {
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
    const Streamed streamed = fixture->Generate(request, timeout, cancel_after);
    MutexLock lock(mu);
    ++counts->by_code[absl::StatusCodeToString(streamed.status.code())];
    ++counts->total;
  }
}

TEST(SoakTest, AfterwardsNothingIsInUseAndTheCountersEqualTheClients) {
  ServerFixture fixture(
      {.engine = {.num_blocks = 100, .on_step = SlowSteps(absl::Microseconds(200))},
       .limits = {.max_sequences = 32, .max_queued_requests = 24}});
  Mutex mu;
  Counts counts;
  const absl::Time end = absl::Now() + absl::Seconds(SoakSeconds());
  std::vector<std::thread> threads;
  for (int stream = 0; stream < kStreams; ++stream) {
    threads.emplace_back([&, stream] { RunStream(&fixture, stream, end, &mu, &counts); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(fixture.BecomesIdle());

  // A request that the client gave up while its end was on the way may be over in another way for
  // the server; one whose deadline passed before it was sent never arrived. Everything else agrees
  // exactly.
  const auto server = [&](const char* code) {
    return static_cast<int>(fixture.Metric("latentd_requests_total", "code", code));
  };
  int gave_up_here = 0, gave_up_there = 0;
  for (const char* code : {"CANCELLED", "DEADLINE_EXCEEDED"}) {
    gave_up_here += counts.by_code[code];
    gave_up_there += server(code);
  }
  EXPECT_EQ(server("INVALID_ARGUMENT") + server("RESOURCE_EXHAUSTED"),
            counts.by_code["INVALID_ARGUMENT"] + counts.by_code["RESOURCE_EXHAUSTED"]);
  EXPECT_GE(server("OK"), counts.by_code["OK"]);
  EXPECT_LE(server("OK") - counts.by_code["OK"], gave_up_here / 10 + 1);
  EXPECT_NEAR(fixture.Metric("latentd_requests_total"), counts.total,
              counts.by_code["DEADLINE_EXCEEDED"] / 10 + 1);
  EXPECT_GT(gave_up_there, 0);
  EXPECT_GT(counts.by_code["OK"], 0);
  EXPECT_EQ(counts.by_code["UNAVAILABLE"] + counts.by_code["INTERNAL"] + counts.by_code["UNKNOWN"],
            0);
  EXPECT_EQ(fixture.Metric("latentd_streams_open"), 0);
  for (const auto& [code, count] : counts.by_code) RecordProperty(code, count);
}

}  // namespace
}  // namespace latentd
