#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cuda/async_copy.cuh"
#include "tests/emulation/block.h"

#define LATENTD_HOPPER 1

namespace latentd {

class PhaseBarrier {
 public:
  void Init(int arrivals) {
    arrivals_ = left_ = static_cast<int16_t>(arrivals);
    phase_ = 0;
  }
  void Arrive(int times = 1) {
    left_ = static_cast<int16_t>(left_ - times);
    if (left_ < 0) __trap();
    if (left_ > 0) return;
    left_ = arrivals_;
    ++phase_;
    emulation::Wake(this);
  }
  void Expect(int bytes) {
    expected_ = static_cast<int16_t>(bytes / 16);
    Arrive();
  }
  void Wait(int phase) {
    while ((phase_ & 1) == (phase & 1)) emulation::Sleep(this);
    const int came = emulation::EndBarrierCopies(this);
    if (came > 0 && came != 16 * expected_) __trap();
  }

 private:
  int16_t arrivals_, left_;
  int16_t phase_;
  int16_t expected_;  // bytes / 16
};

inline void FenceBarriers() {}
inline void FenceBulkCopies() {}

inline void BulkCopy(void* to, const void* from, int bytes, PhaseBarrier& barrier) {
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(to) % 16 != 0 ||
      reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    __trap();
  }
  emulation::BeginBarrierCopy(&barrier, to, from, bytes);
}
inline void BulkCopyOnce(void* to, const void* from, int bytes, PhaseBarrier& barrier) {
  BulkCopy(to, from, bytes, barrier);
}

template <int kRegisters>
inline void TakeRegisters() {}
template <int kRegisters>
inline void LeaveRegisters() {}

constexpr int kOperandUnit = 16;
inline uint32_t RightOperand(uint32_t at) { return (at & 0x3FFFFu) / kOperandUnit | 1u << 16; }
inline void BeginProducts() {}
inline void EndProducts() {}
template <int kNewest>
inline void WaitForProducts() {}

namespace emulation {
// Sum: of D. Number: of A and B, 32 bytes along a row.
template <typename Sum>
struct Product64 {
  Sum* d;
  const uint32_t* a;
  uint32_t b;
  bool add;
};
template <typename Sum, typename Number>
void Multiply64(Product64<Sum> mine) {
  constexpr int kDepth = 32 / static_cast<int>(sizeof(Number));
  const int thread = static_cast<int>(thread_index.x) % 128;
  Meet(GroupMeeting(), 128, thread, &mine, [](void** brought) {
    static Number left[64][kDepth], right[64][kDepth];
    static Sum a[64][kDepth], b[64][kDepth];
    const auto& first = *static_cast<const Product64<Sum>*>(brought[0]);
    const uint32_t at = (first.b & 0x3FFFu) * kOperandUnit;
    for (int n = 0; n < 64; ++n) {
      for (int part = 0; part < 2; ++part) {
        // The address's bits 4 to 6 are exchanged with bits 7 to 9.
        const uint32_t plain = at + n / 8 * 1024 + n % 8 * 128 + part * 16;
        std::memcpy(reinterpret_cast<uint8_t*>(right[n]) + 16 * part,
                    Shared() + (plain ^ (plain >> 7 & 7) << 4), 16);
      }
    }
    for (int t = 0; t < 128; ++t) {
      const auto& p = *static_cast<const Product64<Sum>*>(brought[t]);
      if (p.b != first.b || p.add != first.add) __trap();
      const int row = t / 32 * 16 + t % 32 / 4, byte = t % 4 * 4;
      std::memcpy(reinterpret_cast<uint8_t*>(left[row]) + byte, &p.a[0], 4);
      std::memcpy(reinterpret_cast<uint8_t*>(left[row + 8]) + byte, &p.a[1], 4);
      std::memcpy(reinterpret_cast<uint8_t*>(left[row]) + byte + 16, &p.a[2], 4);
      std::memcpy(reinterpret_cast<uint8_t*>(left[row + 8]) + byte + 16, &p.a[3], 4);
    }
    for (int i = 0; i < 64; ++i) {
      for (int k = 0; k < kDepth; ++k) {
        a[i][k] = static_cast<Sum>(left[i][k]);
        b[i][k] = static_cast<Sum>(right[i][k]);
      }
    }
    for (int t = 0; t < 128; ++t) {
      const auto& p = *static_cast<const Product64<Sum>*>(brought[t]);
      for (int i = 0; i < 32; ++i) {
        const int row = t / 32 * 16 + t % 32 / 4 + i % 4 / 2 * 8;
        const int column = i / 4 * 8 + t % 4 * 2 + i % 2;
        Sum sum = 0;
        for (int k = 0; k < kDepth; ++k) sum += a[row][k] * b[column][k];
        p.d[i] = first.add ? p.d[i] + sum : sum;
      }
    }
  });
}
}  // namespace emulation

inline void MultiplyAdd(int32_t (&d)[32], const uint32_t (&a)[4], uint32_t b, bool add) {
  emulation::Multiply64<int32_t, int8_t>({d, a, b, add});
}
inline void MultiplyAdd(float (&d)[32], const uint32_t (&a)[4], uint32_t b, bool add) {
  emulation::Multiply64<float, __half>({d, a, b, add});
}

}  // namespace latentd
