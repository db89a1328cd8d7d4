// A client that is gone, in each way in which it can be, ends its work; one that only pings is
// never cut off.

#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "latentd/v1/generation.grpc.pb.h"
#include "tests/testing/server_fixture.h"
#include "tests/testing/tcp_relay.h"

namespace latentd {
namespace {

ServerFixture::Options SlowServer() {
  return {.engine = {.max_context = 100000,
                     .num_blocks = 2000,
                     .on_step = SlowSteps(absl::Milliseconds(2))}};
}

// Begins a long generation through the relay, breaks the network at its third token, and waits for
// its end.
absl::Duration TimeUntilFreed(ServerFixture* fixture, TcpRelay* relay,
                              const std::function<void()>& breaks) {
  std::thread client([&] {
    Client(relay->address())
        .Generate(TextRequest("vanishes", 50000), absl::InfiniteFuture(),
                  [](const auto&) { return true; })
        .IgnoreError();
  });
  while (fixture->loop().stats().generated_tokens < 3)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const absl::Time broken = absl::Now();
  breaks();
  while (fixture->loop().stats().blocks_used > 0 && absl::Now() < broken + absl::Seconds(40)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const absl::Duration taken = absl::Now() - broken;
  relay->Reset();  // for a client that still waits
  client.join();
  return taken;
}

TEST(VanishedPeerTest, AResetConnectionFreesItsWorkAtOnce) {
  ServerFixture fixture(SlowServer());
  TcpRelay relay(fixture.server().address());
  EXPECT_LT(TimeUntilFreed(&fixture, &relay, [&] { relay.Reset(); }), absl::Seconds(1));
  EXPECT_TRUE(fixture.BecomesIdle());
  EXPECT_EQ(fixture.Metric("latentd_requests_total", "code", "CANCELLED"), 1);
}

TEST(VanishedPeerSoakTest, AHalfOpenConnectionIsFoundWithin30Seconds) {
  ServerFixture fixture(SlowServer());
  TcpRelay relay(fixture.server().address());
  EXPECT_LT(TimeUntilFreed(&fixture, &relay, [&] { relay.Freeze(); }), absl::Seconds(30));
  EXPECT_TRUE(fixture.BecomesIdle());
}

TEST(VanishedPeerSoakTest, AClientThatPingsEvery10SecondsIsNeverCutOff) {
  ServerFixture fixture;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  const auto channel = grpc::CreateCustomChannel(fixture.server().address(),
                                                 grpc::InsecureChannelCredentials(), arguments);
  ASSERT_TRUE(channel->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Seconds(5))));
  // A cut connection would leave READY: GOAWAY too_many_pings.
  EXPECT_FALSE(channel->WaitForStateChange(GRPC_CHANNEL_READY,
                                           absl::ToChronoTime(absl::Now() + absl::Seconds(180))));
}

}  // namespace
}  // namespace latentd
