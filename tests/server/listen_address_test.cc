#include "server/listen_address.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "server/metrics_page.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

TEST(ListenAddressTest, OnlyWhatIsFreeAndOfThisHostPasses) {
  prometheus::Registry registry;
  auto page = MetricsPage::Start("127.0.0.1:0", &registry, {});
  ASSERT_TRUE(page.ok()) << page.status();
  const std::string taken = (*page)->address();
  for (const std::string& address :
       {taken, std::string("203.0.113.1:1"), std::string("no.such.host.invalid:0"),
        std::string("nonsense")}) {
    const absl::Status status = CheckListen("--listen", address);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << address;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("--listen: cannot listen on " + address + ": "));
  }
  for (const char* address : {"127.0.0.1:0", "0.0.0.0:0", "localhost:0"}) {
    EXPECT_TRUE(CheckListen("--listen", address).ok()) << address;
  }
  page->reset();
  EXPECT_TRUE(CheckListen("--listen", taken).ok());
  // The check leaves nothing behind.
  EXPECT_TRUE(MetricsPage::Start(taken, &registry, {}).ok());
}

}  // namespace
}  // namespace latentd
