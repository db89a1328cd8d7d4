#include "server/metrics_page.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/counter.h"
#include "prometheus/registry.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The whole answer of a GET.
std::string Get(const std::string& address, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) {
    const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
    send(fd, request.data(), request.size(), 0);
    char buffer[4096];
    for (ssize_t n; (n = recv(fd, buffer, sizeof(buffer), 0)) > 0;) answer.append(buffer, n);
  }
  close(fd);
  return answer;
}

TEST(MetricsPageTest, ShowsTheRegistryTheProcessAndTheProbes) {
  prometheus::Registry registry;
  prometheus::BuildCounter()
      .Name("tries_total")
      .Help("tries")
      .Register(registry)
      .Add({{"kind", "x"}})
      .Increment(3);
  std::atomic<bool> live{true}, ready{false};
  const auto status = [](bool ok) {
    return ok ? absl::OkStatus() : absl::UnavailableError("not yet");
  };
  const auto page = MetricsPage::Start(
      "127.0.0.1:0", &registry,
      {.live = [&] { return status(live); }, .ready = [&] { return status(ready); }});
  ASSERT_TRUE(page.ok()) << page.status();
  const std::string& address = (*page)->address();
  const std::string metrics = Get(address, "/metrics");
  EXPECT_THAT(metrics, HasSubstr("200"));
  EXPECT_THAT(metrics, HasSubstr("tries_total{kind=\"x\"} 3"));
  for (const char* name : {"process_resident_memory_bytes ", "process_cpu_seconds_total ",
                           "process_open_fds ", "process_start_time_seconds "}) {
    EXPECT_THAT(metrics, HasSubstr(name));
  }
  EXPECT_THAT(Get(address, "/livez"), HasSubstr("200"));
  EXPECT_THAT(Get(address, "/readyz"), HasSubstr("503"));
  EXPECT_THAT(Get(address, "/readyz"), HasSubstr("not yet"));
  ready = true;
  live = false;
  EXPECT_THAT(Get(address, "/readyz"), HasSubstr("200"));
  EXPECT_THAT(Get(address, "/livez"), HasSubstr("503"));
  EXPECT_THAT(Get(address, "/else"), HasSubstr("404"));

  const auto second = MetricsPage::Start(address, &registry, {});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()),
              StartsWith("--metrics-listen: cannot listen on " + address));
}

TEST(MetricsPageTest, EndsAtOnce) {
  prometheus::Registry registry;
  for (const char* listen : {"127.0.0.1:0", "0.0.0.0:0"}) {
    auto page = MetricsPage::Start(listen, &registry, {});
    ASSERT_TRUE(page.ok()) << page.status();
    const absl::Time begin = absl::Now();
    page->reset();
    EXPECT_LT(absl::Now() - begin, absl::Seconds(1)) << listen;
  }
}

}  // namespace
}  // namespace latentd
