#pragma once

#include <cmath>
#include <cstdint>

#include "base/random.h"
#include "engine/compressor/matrix.h"

namespace latentd {

// Entries uniform in [-0.5, 0.5), a function of seed and place.
inline Matrix RandomMatrix(int rows, int cols, uint64_t seed) {
  Matrix out(rows, cols);
  for (size_t i = 0; i < out.values.size(); ++i) out.values[i] = RandomUniform(seed, i) - 0.5;
  return out;
}

// A matrix of full rank whose columns fall by `decay` from one to the next.
inline Matrix RandomRoot(int n, uint64_t seed, double decay = 0.8) {
  Matrix root = RandomMatrix(n, n, seed);
  for (int r = 0; r < n; ++r) {
    for (int c = 0; c < n; ++c) root.at(r, c) *= std::pow(decay, c);
  }
  return root;
}

// A second moment of full rank whose directions differ a lot in energy.
inline Matrix RandomMoment(int n, uint64_t seed, double decay = 0.8) {
  const Matrix root = RandomRoot(n, seed, decay);
  return Multiply(root, Transpose::kNo, root, Transpose::kYes);
}

// E[e^T weight e] for e = (I - up down) y and E[y y^T] = moment: trace(weight R moment R^T).
inline double LostEnergy(const Matrix& up, const Matrix& down, const Matrix& moment,
                         const Matrix& weight) {
  Matrix rest = Multiply(up, down);
  for (int r = 0; r < rest.rows; ++r) {
    for (int c = 0; c < rest.cols; ++c) rest.at(r, c) = (r == c ? 1 : 0) - rest.at(r, c);
  }
  const Matrix error = Multiply(Multiply(rest, moment), Transpose::kNo, rest, Transpose::kYes);
  double trace = 0;
  for (int r = 0; r < error.rows; ++r) {
    for (int c = 0; c < error.cols; ++c) trace += weight.at(r, c) * error.at(c, r);
  }
  return trace;
}

inline Matrix Identity(int n) {
  Matrix out(n, n);
  for (int i = 0; i < n; ++i) out.at(i, i) = 1;
  return out;
}

}  // namespace latentd
