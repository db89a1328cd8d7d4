#pragma once

#include <vector_types.h>

#include <cstdint>

#include "absl/functional/function_ref.h"

// One block of threads of a kernel, run on one thread of the CPU: its threads are contexts that
// take turns, and what they do together (votes, products of tensor cores, barriers) happens when
// the last of them has come. Blocks run one after another.

namespace latentd::emulation {

inline constexpr int kWarp = 32;

// The thread whose turn it is.
extern uint3 thread_index, block_index;
extern dim3 block_size, grid_size;

// Runs `kernel` for every thread of every block. Ends the process if threads wait for one another
// for ever.
void Run(dim3 grid, int threads, int shared_bytes, absl::FunctionRef<void()> kernel);

// The block's shared memory, aligned to 1024 bytes; its addresses begin at 0.
uint8_t* Shared();
uint32_t AddressOf(const void* at);  // ends the process for what is not in it

// Lets others have their turns until somebody calls Wake with the same address.
void Sleep(const void* at);
void Wake(const void* at);

// Copies in the background. They happen as late as they may, or as early ($LATENTD_EMULATED_COPIES
// is "early"): who reads too soon sees what was there before in the one case, who still reads what
// is overwritten sees that in the other.
void BeginCopy(void* to, const void* from, int bytes);
void EndCopies();  // the thread's copies since the last one are a group
void WaitForCopies(int newest);
// Copies for which the barrier at `barrier` stands, and their end for whoever has waited for it:
// how many bytes were still to come.
void BeginBarrierCopy(const void* barrier, void* to, const void* from, int bytes);
int EndBarrierCopies(const void* barrier);

// Threads of the block, whole warps, meet: the last to come calls `together` with what each
// brought, and all go on.
struct Meeting {
  int arrived = 0;
  void* brought[1024] = {};
};
void Meet(Meeting& meeting, int count, int place, void* brought,
          absl::FunctionRef<void(void** brought)> together);

Meeting& WarpMeeting();   // of the thread's warp
Meeting& GroupMeeting();  // of its four warps
Meeting& NamedMeeting(int id);

inline int Lane() { return static_cast<int>(thread_index.x) % kWarp; }

// Every lane of the warp brings a T and takes one away: together(T (&lanes)[32]).
template <typename T, typename Together>
T OfWarp(T value, const Together& together) {
  Meet(WarpMeeting(), kWarp, Lane(), &value, [&](void** brought) {
    T lanes[kWarp];
    for (int i = 0; i < kWarp; ++i) lanes[i] = *static_cast<T*>(brought[i]);
    together(lanes);
    for (int i = 0; i < kWarp; ++i) *static_cast<T*>(brought[i]) = lanes[i];
  });
  return value;
}

}  // namespace latentd::emulation
