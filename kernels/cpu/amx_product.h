#pragma once

#include <cstdint>

namespace latentd {

// The integer products of attention, on the tile registers of Intel's AMX: ten times the rate of
// AVX-512 VNNI. Apart from the Highway code because Highway has no tiles. They run between the
// construction and the destruction of an AmxTiles on the same thread.
//
// The product that rebuilds keys (and scores absorbed queries):
//
//   out[r][t] = sum over d of factors[r][d] * code(d, t)
//
//   factors  [rows][row_bytes] int8, zero from the real dims on; rows a multiple of 16, row_bytes
//            of kAmxStep
//   words    [row_bytes / 4][64 tokens][4 dims] uint8, or int8 for AmxSignedProduct: the kDimMajor
//            order of 8-bit codes. Where factors are zero the bytes are read and do not matter.
//   out      [rows][64 tokens] int32
inline constexpr int kAmxStep = 64;
inline constexpr int kAmxRows = 16;
void AmxProduct(const int8_t* factors, int row_bytes, int rows, const uint8_t* words, int32_t* out);
void AmxSignedProduct(const int8_t* factors, int row_bytes, int rows, const uint8_t* words,
                      int32_t* out);

// The product that mixes values, for two int8 parts of the weights of 16 rows at a time:
//
//   out[i][p][r][d] = sum over t of weights[p][r][t] * code(i, t, d)
//
//   weights  [2][kAmxRows][64 tokens] int8; rows that nobody waits for may hold anything
//   words    [tiles][16][16 dims][4 tokens] int8
//   out      [tiles][2][kAmxRows][16 dims] int32
void AmxValueProduct(const int8_t* weights, const uint8_t* words, int tiles, int32_t* out);

// Takes the thread's tile registers while it lives, if `use`; they cost every context switch 8 KiB.
class AmxTiles {
 public:
  explicit AmxTiles(bool use);
  ~AmxTiles();
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

 private:
  const bool used_;
};

// Asks Linux, once for all threads of the process, for AMX's registers. False when the machine has
// no AMX or Linux refuses (old kernels, seccomp filters): Int8Product then rebuilds keys from the
// same integers, and values are mixed in fp32.
bool RequestAmx();

}  // namespace latentd
