#include "engine/compressor/staged_copies.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace latentd {
namespace {

// A fraction of a millisecond on its way: much longer than what starts it.
constexpr int64_t kPieceBytes = int64_t{8} << 20;

// That fit a piece.
int64_t RowsOf(int64_t row_bytes) {
  LATENTD_CHECK(row_bytes <= kPieceBytes);
  return kPieceBytes / row_bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StagedCopies>> StagedCopies::Create(CudaDevice& device,
                                                                   ThreadPool& pool) {
  std::unique_ptr<StagedCopies> copies(new StagedCopies(device, pool));
  for (Piece& piece : copies->pieces_) {
    void* memory = nullptr;
    cudaError_t error = cudaMallocHost(&memory, kPieceBytes);
    if (error == cudaSuccess) {
      piece.memory = static_cast<std::byte*>(memory);
      error = cudaEventCreateWithFlags(&piece.copied, cudaEventDisableTiming);
    }
    if (error != cudaSuccess) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "cannot pin ", kPieceBytes, " bytes of the host's memory: ", cudaGetErrorString(error)));
    }
  }
  return copies;
}

StagedCopies::~StagedCopies() {
  for (const Piece& piece : pieces_) {
    if (piece.copied != nullptr) {
      cudaEventSynchronize(piece.copied);
      cudaEventDestroy(piece.copied);
    }
    if (piece.memory != nullptr) cudaFreeHost(piece.memory);
  }
}

void StagedCopies::Copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind,
                        const Piece& piece) {
  device_.Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, device_.stream()),
                "staged copy");
  device_.Check(cudaEventRecord(piece.copied, device_.stream()), "staged copy");
}

void StagedCopies::WaitFor(const Piece& piece) {
  device_.Check(cudaEventSynchronize(piece.copied), "staged copy");
}

void StagedCopies::In(void* to, int64_t rows, int64_t row_bytes, Fill fill) {
  const int64_t at_once = RowsOf(row_bytes);
  for (int64_t begin = 0, i = 0; begin < rows; begin += at_once, ++i) {
    const Piece& piece = pieces_[i % 2];
    const int64_t count = std::min(at_once, rows - begin);
    WaitFor(piece);
    pool_.ParallelFor(count, pool_.Grain(count), [&](int64_t first, int64_t end, int) {
      fill(begin + first, begin + end, piece.memory + first * row_bytes);
    });
    Copy(static_cast<std::byte*>(to) + begin * row_bytes, piece.memory, count * row_bytes,
         cudaMemcpyHostToDevice, piece);
  }
}

void StagedCopies::Out(const void* from, int64_t rows, int64_t row_bytes, Take take) {
  const int64_t at_once = RowsOf(row_bytes);
  const int64_t copies = (rows + at_once - 1) / at_once;
  for (int64_t i = 0; i <= copies; ++i) {
    if (i < copies) {
      const int64_t begin = i * at_once;
      const Piece& piece = pieces_[i % 2];
      Copy(piece.memory, static_cast<const std::byte*>(from) + begin * row_bytes,
           std::min(at_once, rows - begin) * row_bytes, cudaMemcpyDeviceToHost, piece);
    }
    if (i == 0) continue;
    const int64_t begin = (i - 1) * at_once;
    const int64_t count = std::min(at_once, rows - begin);
    const Piece& piece = pieces_[(i - 1) % 2];
    WaitFor(piece);
    pool_.ParallelFor(count, pool_.Grain(count), [&](int64_t first, int64_t end, int) {
      take(begin + first, begin + end, piece.memory + first * row_bytes);
    });
  }
}

}  // namespace latentd
