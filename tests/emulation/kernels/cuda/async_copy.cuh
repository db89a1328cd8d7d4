#pragma once

#include <cstdint>

#include "tests/emulation/block.h"

namespace latentd {

inline uint32_t SharedAddress(const void* at) { return emulation::AddressOf(at); }
inline void BeginCopy(uint32_t to, const uint8_t* from) {
  if (to % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) __trap();
  emulation::BeginCopy(emulation::Shared() + to, from, 16);
}
inline void BeginCopyOnce(uint32_t to, const uint8_t* from) { BeginCopy(to, from); }
inline void EndCopies() { emulation::EndCopies(); }
template <int kNewest>
inline void WaitForCopies() {
  emulation::WaitForCopies(kNewest);
}
inline void Prefetch(const void*) {}

inline void WaitForOthers(int id, int threads) {
  emulation::Meet(emulation::NamedMeeting(id), threads,
                  static_cast<int>(emulation::thread_index.x) % threads, nullptr, [](void**) {});
}

}  // namespace latentd
