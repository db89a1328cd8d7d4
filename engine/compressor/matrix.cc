#include "engine/compressor/matrix.h"

#include <cblas.h>
#include <lapacke.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "hwy/targets.h"

namespace latentd {

Matrix Multiply(const Matrix& a, Transpose ta, const Matrix& b, Transpose tb) {
  const bool at = ta == Transpose::kYes, bt = tb == Transpose::kYes;
  const int m = at ? a.cols : a.rows, k = at ? a.rows : a.cols, n = bt ? b.rows : b.cols;
  LATENTD_CHECK(k == (bt ? b.cols : b.rows));
  Matrix out(m, n);
  cblas_dgemm(CblasRowMajor, at ? CblasTrans : CblasNoTrans, bt ? CblasTrans : CblasNoTrans, m, n,
              k, 1.0, a.values.data(), a.cols, b.values.data(), b.cols, 0.0, out.values.data(), n);
  return out;
}

void AddMoment(const float* x, int rows, Matrix* sum) {
  const int n = sum->cols;
  const std::vector<double> wide(x, x + static_cast<size_t>(rows) * n);
  cblas_dsyrk(CblasRowMajor, CblasUpper, CblasTrans, n, rows, 1.0, wide.data(), n, 1.0,
              sum->values.data(), n);
}

void MirrorUpperTriangle(Matrix* matrix) {
  for (int r = 1; r < matrix->rows; ++r) {
    for (int c = 0; c < r; ++c) matrix->at(r, c) = matrix->at(c, r);
  }
}

absl::StatusOr<Eigen> SymmetricEigen(const Matrix& symmetric) {
  const int n = symmetric.rows;
  LATENTD_CHECK(n == symmetric.cols);
  Matrix columns = symmetric;  // overwritten with the eigenvectors, ascending
  std::vector<double> ascending(n);
  const int info =
      LAPACKE_dsyevd(LAPACK_ROW_MAJOR, 'V', 'U', n, columns.values.data(), n, ascending.data());
  if (info != 0) {
    return absl::InternalError(absl::StrCat("eigenvalues of a ", n, " x ", n,
                                            " matrix did not converge (LAPACK info ", info, ")"));
  }
  Eigen eigen{.values = std::vector<double>(ascending.rbegin(), ascending.rend()),
              .vectors = Matrix(n, n)};
  for (int r = 0; r < n; ++r) {
    for (int c = 0; c < n; ++c) eigen.vectors.at(r, c) = columns.at(r, n - 1 - c);
  }
  return eigen;
}

absl::Status CheckLinearAlgebra() {
  constexpr int kSize = 96;  // large enough for the blocked paths
  Matrix square(kSize, kSize);
  for (size_t i = 0; i < square.values.size(); ++i) square.values[i] = RandomUniform(1, i) - 0.5;
  Matrix gram(kSize, kSize);
  const std::vector<float> single(square.values.begin(), square.values.end());
  AddMoment(single.data(), kSize, &gram);
  MirrorUpperTriangle(&gram);
  ASSIGN_OR_RETURN(const Eigen eigen, SymmetricEigen(gram));
  Matrix scaled = eigen.vectors;
  for (int r = 0; r < kSize; ++r) {
    for (int c = 0; c < kSize; ++c) scaled.at(r, c) *= eigen.values[c];
  }
  const Matrix rebuilt = Multiply(scaled, Transpose::kNo, eigen.vectors, Transpose::kYes);
  std::vector<float> single_gram(single.size());
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, kSize, kSize, kSize, 1.0f, single.data(),
              kSize, single.data(), kSize, 0.0f, single_gram.data(), kSize);
  double error = 0, single_error = 0;
  for (int r = 0; r < kSize; ++r) {
    for (int c = 0; c < kSize; ++c) {
      double dot = 0;
      for (int i = 0; i < kSize; ++i) dot += double{single[i * kSize + r]} * single[i * kSize + c];
      error = std::max({error, std::abs(dot - gram.at(r, c)), std::abs(dot - rebuilt.at(r, c))});
      single_error = std::max(single_error, std::abs(dot - single_gram[r * kSize + c]));
    }
  }
  if (!(error < 1e-10 && single_error < 1e-4)) {
    return absl::InternalError(
        absl::StrCat("the linear algebra library fails its self-check: error ", error,
                     " in double, allowed "
                     "1e-10, and ",
                     single_error,
                     " in single precision, allowed 1e-4; try "
                     "OPENBLAS_CORETYPE=HASWELL"));
  }
  return absl::OkStatus();
}

std::string BetterCoreType() {
  const int64_t vectors = hwy::SupportedTargets();
  return BetterCoreType(openblas_get_corename(), (vectors & HWY_AVX2) != 0,
                        (vectors & HWY_AVX3) != 0);
}

std::string BetterCoreType(const std::string& core, bool has_avx2, bool has_avx512) {
  if (core != "Prescott" || !has_avx2) return "";
  return has_avx512 ? "SKYLAKEX" : "HASWELL";
}

}  // namespace latentd
