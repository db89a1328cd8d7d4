#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace latentd {

// A dense row-major matrix of doubles, for the offline algebra of the compressor.
struct Matrix {
  Matrix() = default;
  Matrix(int rows, int cols) : rows(rows), cols(cols), values(static_cast<size_t>(rows) * cols) {}

  int rows = 0;
  int cols = 0;
  std::vector<double> values;

  double& at(int r, int c) { return values[static_cast<size_t>(r) * cols + c]; }
  double at(int r, int c) const { return values[static_cast<size_t>(r) * cols + c]; }
};

enum class Transpose : char { kNo, kYes };

// op(a) x op(b).
Matrix Multiply(const Matrix& a, Transpose ta, const Matrix& b, Transpose tb);
inline Matrix Multiply(const Matrix& a, const Matrix& b) {
  return Multiply(a, Transpose::kNo, b, Transpose::kNo);
}

// Upper triangle of sum += x^T x, for `rows` rows of `sum.cols` values.
void AddMoment(const float* x, int rows, Matrix* sum);

// Makes a square matrix symmetric by its upper triangle.
void MirrorUpperTriangle(Matrix* matrix);

// Eigenvalues of a symmetric matrix from the largest down, and their orthonormal eigenvectors as
// columns.
struct Eigen {
  std::vector<double> values;
  Matrix vectors;  // [n, n]
};
absl::StatusOr<Eigen> SymmetricEigen(const Matrix& symmetric);

// INTERNAL when the linear algebra library of this machine computes wrong results (some builds do
// on processors newer than they are); checked once before a compression starts.
absl::Status CheckLinearAlgebra();

// The code that the linear algebra library should have taken (OPENBLAS_CORETYPE) where it does not
// know this processor and took its oldest one, which was measured at a fifth of the speed; empty
// where all is well.
std::string BetterCoreType();
// The same for a processor with these vectors, when the library takes the code of `core`
// (openblas_get_corename) for it.
std::string BetterCoreType(const std::string& core, bool has_avx2, bool has_avx512);

}  // namespace latentd
