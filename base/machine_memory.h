#pragma once

#include <cstdint>

namespace latentd {

// The bytes of memory that this machine has, whoever uses them. A container's limit is not seen.
int64_t MachineMemory();

}  // namespace latentd
