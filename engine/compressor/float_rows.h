#pragma once

#include <cstdint>

#include "kernels/params.h"

namespace latentd {

// The decoder's row-wise functions in fp32 and their derivatives, on one thread. Formulas:
// kernels/params.h. What a gradient's name means: `dx` is the derivative of the loss by x.

// x = e^x for n values; relative error below 3e-7 for x in [-87, 88], 0 below.
void ExpInPlace(float* x, int64_t n);

// Largest of n >= 1 values.
float Largest(const float* x, int64_t n);

float Sum(const float* x, int64_t n);
float Dot(const float* a, const float* b, int64_t n);

struct RowNorm {
  NormKind kind = NormKind::kRms;
  float epsilon = 0;
  int64_t dims = 0;
  const float* weight = nullptr;  // [dims]
  const float* bias = nullptr;    // [dims] or null
};

// out [rows, dims], may be `in`.
void NormRows(const RowNorm& norm, const float* in, int64_t rows, float* out);

// dx = the gradient through NormRows of rows `in` whose outputs have the gradient `dout`; added to
// what dx holds where `accumulate`. dx may be dout.
void NormRowsBackward(const RowNorm& norm, const float* in, const float* dout, int64_t rows,
                      bool accumulate, float* dx);

// out = activation of n values; up is null for ungated kinds. out may be gate or up.
void Activate(ActivationKind kind, const float* gate, const float* up, int64_t n, float* out);

// In place: gate and up become the gradients by themselves, from `dout`.
void ActivateBackward(ActivationKind kind, const float* dout, int64_t n, float* gate, float* up);

// Rotates rows [first, first + rows) of x [T, heads, head_dim], row t at position t; `inverse`
// rotates back, which is what a gradient needs.
void RotateRows(const RopeTable& table, int64_t first, int64_t rows, int heads, int head_dim,
                bool inverse, float* x);

}  // namespace latentd
