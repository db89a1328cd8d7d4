#pragma once

#include <functional>

namespace latentd::emulation {

// Does the work now, or notes it while a graph is recorded.
void Put(std::function<void()> work);

}  // namespace latentd::emulation
