#include "base/machine_memory.h"

#include <unistd.h>

namespace latentd {

int64_t MachineMemory() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

}  // namespace latentd
