#include "kernels/cpu/amx_product.h"

#include "base/check.h"
#include "kernels/cache_layout.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace latentd {

#if defined(__x86_64__) && defined(__linux__)

namespace {

constexpr int kWordBytes = 4;
constexpr int kQuadBytes = kBlockTokens * kWordBytes;  // one quad of dims for all tokens

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kTileConfig;

__attribute__((target("amx-tile"))) void ConfigureTiles() { _tile_loadconfig(&kTileConfig); }
__attribute__((target("amx-tile"))) void ReleaseTiles() { _tile_release(); }

// The words are AMX's B operand as they lie: 16 quads (its rows, kQuadBytes apart) x 16 tokens x 4
// dims. (Tiles are named by constants, so the two kinds of products are two instructions.)
template <bool kSigned>
__attribute__((target("amx-tile,amx-int8"))) void Product(const int8_t* factors, int row_bytes,
                                                          int rows, const uint8_t* words,
                                                          int32_t* out) {
  constexpr int kOutBytes = kBlockTokens * sizeof(int32_t);
  for (int r = 0; r < rows; r += kAmxRows) {
    const int8_t* row = factors + static_cast<int64_t>(r) * row_bytes;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int k = 0; k < row_bytes; k += kAmxStep) {
      const uint8_t* w = words + k / kWordBytes * kQuadBytes;
      _tile_loadd(4, row + k, row_bytes);
      _tile_loadd(5, w, kQuadBytes);
      _tile_loadd(6, w + 64, kQuadBytes);
      _tile_loadd(7, w + 128, kQuadBytes);
      if constexpr (kSigned) {
        _tile_dpbssd(0, 4, 5);
        _tile_loadd(5, w + 192, kQuadBytes);
        _tile_dpbssd(1, 4, 6);
        _tile_dpbssd(2, 4, 7);
        _tile_dpbssd(3, 4, 5);
      } else {
        _tile_dpbsud(0, 4, 5);
        _tile_loadd(5, w + 192, kQuadBytes);
        _tile_dpbsud(1, 4, 6);
        _tile_dpbsud(2, 4, 7);
        _tile_dpbsud(3, 4, 5);
      }
    }
    int32_t* to = out + r * kBlockTokens;
    _tile_stored(0, to, kOutBytes);
    _tile_stored(1, to + 16, kOutBytes);
    _tile_stored(2, to + 32, kOutBytes);
    _tile_stored(3, to + 48, kOutBytes);
  }
}

}  // namespace

void AmxProduct(const int8_t* factors, int row_bytes, int rows, const uint8_t* words,
                int32_t* out) {
  Product<false>(factors, row_bytes, rows, words, out);
}

void AmxSignedProduct(const int8_t* factors, int row_bytes, int rows, const uint8_t* words,
                      int32_t* out) {
  Product<true>(factors, row_bytes, rows, words, out);
}

__attribute__((target("amx-tile,amx-int8"))) void AmxValueProduct(const int8_t* weights,
                                                                  const uint8_t* words, int tiles,
                                                                  int32_t* out) {
  constexpr int kLine = 64;
  constexpr int kTileBytes = kAmxRows * kLine;
  constexpr int kTileInts = kTileBytes / sizeof(int32_t);
  _tile_loadd(4, weights, kLine);
  _tile_loadd(5, weights + kTileBytes, kLine);
  for (int i = 0; i < tiles; ++i, words += kTileBytes, out += 2 * kTileInts) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(6, words, kLine);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 5, 6);
    _tile_stored(0, out, kLine);
    _tile_stored(1, out + kTileInts, kLine);
  }
}

AmxTiles::AmxTiles(bool use) : used_(use) {
  if (used_) ConfigureTiles();
}
AmxTiles::~AmxTiles() {
  if (used_) ReleaseTiles();
}

bool RequestAmx() {
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  constexpr unsigned kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
  if ((edx & kAmxTile) == 0 || (edx & kAmxInt8) == 0) return false;
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM, for all threads of the process
  constexpr int kTileData = 18;               // XFEATURE_XTILE_DATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#else

void AmxProduct(const int8_t*, int, int, const uint8_t*, int32_t*) { LATENTD_CHECK(false); }
void AmxSignedProduct(const int8_t*, int, int, const uint8_t*, int32_t*) { LATENTD_CHECK(false); }
void AmxValueProduct(const int8_t*, const uint8_t*, int, int32_t*) { LATENTD_CHECK(false); }
AmxTiles::AmxTiles(bool use) : used_(use) {}
AmxTiles::~AmxTiles() = default;
bool RequestAmx() { return false; }

#endif

}  // namespace latentd
