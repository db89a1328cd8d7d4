#pragma once

#include <cstdint>

namespace latentd {

// The bytes of memory that this machine has, whoever uses them.
int64_t MachineMemory();

}  // namespace latentd
