#include "base/machine_memory.h"

#include <unistd.h>

#include "gtest/gtest.h"

namespace latentd {
namespace {

TEST(MachineMemoryTest, IsAWholeNumberOfPages) {
  EXPECT_GT(MachineMemory(), 0);
  EXPECT_EQ(MachineMemory() % sysconf(_SC_PAGESIZE), 0);
}

}  // namespace
}  // namespace latentd
