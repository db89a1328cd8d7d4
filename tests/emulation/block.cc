#include "tests/emulation/block.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

namespace latentd::emulation {

uint3 thread_index, block_index;
dim3 block_size, grid_size;

namespace {

// Of a thread; no power of 2, or the ends of stacks would share cache lines.
constexpr size_t kStackBytes = (128 << 10) + 1088;
constexpr size_t kSharedBytes = 227 << 10;  // as runtime.cc says
constexpr int kMaxThreads = 1024;

// Saves the callee's registers and stack, and goes on where another context stopped.
extern "C" void LatentdSwitch(void** save, void* to);
asm(R"(
.text
.globl LatentdSwitch
LatentdSwitch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");

struct Copy {
  void* to;
  const void* from;
  int bytes;
  const void* barrier = nullptr;

  void Do() const { std::memcpy(to, from, bytes); }
};
bool CopiesEarly() {
  static const char* const when = std::getenv("LATENTD_EMULATED_COPIES");
  static const bool early = when != nullptr && std::strcmp(when, "early") == 0;
  return early;
}

struct Block {
  std::vector<std::vector<Copy>> groups_of[kMaxThreads];  // of copies; the last is open
  std::vector<Copy> barrier_copies;
  uint8_t* stacks = nullptr;
  void* contexts[kMaxThreads];
  std::deque<int> ready;
  std::vector<std::pair<const void*, std::vector<int>>> asleep;  // few
  void* scheduler = nullptr;
  int count = 0;
  int current = 0;
  int left = 0;
  const absl::FunctionRef<void()>* kernel = nullptr;
  Meeting warps[kMaxThreads / kWarp], groups[kMaxThreads / 128], named[16];
  std::vector<uint8_t> shared_room;
  uint8_t* shared = nullptr;

  std::vector<int>& AsleepAt(const void* at) {
    for (auto& [address, threads] : asleep) {
      if (address == at) return threads;
    }
    return asleep.emplace_back(at, std::vector<int>()).second;
  }

  Block() : shared_room(kSharedBytes + 1024) {
    stacks = static_cast<uint8_t*>(mmap(nullptr, kStackBytes * kMaxThreads, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (stacks == MAP_FAILED) std::abort();
    const auto at = reinterpret_cast<uintptr_t>(shared_room.data());
    shared = shared_room.data() + (1024 - at % 1024);
  }
};
Block& TheBlock() {
  static Block block;
  return block;
}

void GiveTurn(Block& block) { LatentdSwitch(&block.contexts[block.current], block.scheduler); }

void Enter() {
  Block& block = TheBlock();
  (*block.kernel)();
  --block.left;
  GiveTurn(block);
  std::abort();
}

void RunBlock(Block& block, const absl::FunctionRef<void()>& kernel) {
  block.kernel = &kernel;
  block.barrier_copies.clear();
  block.left = block.count;
  std::memset(block.shared, 0xFF, kSharedBytes);
  for (int i = 0; i < block.count; ++i) {
    auto* top = reinterpret_cast<void**>(block.stacks + kStackBytes * (i + 1)) - 2;
    *top = reinterpret_cast<void*>(&Enter);  // where LatentdSwitch returns to
    block.contexts[i] = top - 6;
    block.ready.push_back(i);
    block.groups_of[i].assign(1, {});
  }
  while (!block.ready.empty()) {
    block.current = block.ready.front();
    block.ready.pop_front();
    thread_index = {static_cast<unsigned>(block.current), 0, 0};
    LatentdSwitch(&block.scheduler, block.contexts[block.current]);
  }
  if (block.left > 0) {
    std::fprintf(stderr, "emulation: %d threads of block (%u, %u, %u) wait for ever\n", block.left,
                 block_index.x, block_index.y, block_index.z);
    std::abort();
  }
}

}  // namespace

void Run(dim3 grid, int threads, int shared_bytes, absl::FunctionRef<void()> kernel) {
  Block& block = TheBlock();
  constexpr unsigned kMostBlocks = 65535;  // along y and z
  if (threads < 1 || threads > kMaxThreads || static_cast<size_t>(shared_bytes) > kSharedBytes ||
      grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.y > kMostBlocks || grid.z > kMostBlocks) {
    std::fprintf(stderr, "emulation: no launch of (%u, %u, %u) blocks of %d threads, %d bytes\n",
                 grid.x, grid.y, grid.z, threads, shared_bytes);
    std::abort();
  }
  block.count = threads;
  grid_size = grid;
  block_size = dim3(threads);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        block_index = {x, y, z};
        RunBlock(block, kernel);
      }
    }
  }
}

uint8_t* Shared() { return TheBlock().shared; }
uint32_t AddressOf(const void* at) {
  const int64_t address = static_cast<const uint8_t*>(at) - Shared();
  if (address < 0 || address > static_cast<int64_t>(kSharedBytes)) std::abort();
  return static_cast<uint32_t>(address);
}

void Sleep(const void* at) {
  Block& block = TheBlock();
  block.AsleepAt(at).push_back(block.current);
  GiveTurn(block);
}
void Wake(const void* at) {
  Block& block = TheBlock();
  std::vector<int>& asleep = block.AsleepAt(at);
  block.ready.insert(block.ready.end(), asleep.begin(), asleep.end());
  asleep.clear();
}

void BeginCopy(void* to, const void* from, int bytes) {
  const Copy copy{to, from, bytes};
  if (CopiesEarly()) return copy.Do();
  Block& block = TheBlock();
  block.groups_of[block.current].back().push_back(copy);
}
void EndCopies() {
  Block& block = TheBlock();
  block.groups_of[block.current].emplace_back();
}
void WaitForCopies(int newest) {
  Block& block = TheBlock();
  auto& groups = block.groups_of[block.current];
  const auto ended = static_cast<int>(groups.size()) - 1 - newest;
  if (ended <= 0) return;
  for (int g = 0; g < ended; ++g) {
    for (const Copy& copy : groups[g]) copy.Do();
  }
  groups.erase(groups.begin(), groups.begin() + ended);
}
void BeginBarrierCopy(const void* barrier, void* to, const void* from, int bytes) {
  const Copy copy{to, from, bytes, barrier};
  if (CopiesEarly()) return copy.Do();
  TheBlock().barrier_copies.push_back(copy);
}
int EndBarrierCopies(const void* barrier) {
  int bytes = 0;
  std::erase_if(TheBlock().barrier_copies, [&](const Copy& copy) {
    if (copy.barrier != barrier) return false;
    copy.Do();
    bytes += copy.bytes;
    return true;
  });
  return bytes;
}

void Meet(Meeting& meeting, int count, int place, void* brought,
          absl::FunctionRef<void(void** brought)> together) {
  meeting.brought[place] = brought;
  if (++meeting.arrived < count) return Sleep(&meeting);
  meeting.arrived = 0;
  together(meeting.brought);
  Wake(&meeting);
}

Meeting& WarpMeeting() { return TheBlock().warps[thread_index.x / kWarp]; }
Meeting& GroupMeeting() { return TheBlock().groups[thread_index.x / 128]; }
Meeting& NamedMeeting(int id) { return TheBlock().named[id]; }

}  // namespace latentd::emulation
