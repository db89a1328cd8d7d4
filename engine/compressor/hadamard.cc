#include "engine/compressor/hadamard.h"

#include <cmath>
#include <optional>

namespace latentd {
namespace {

bool IsPrime(int n) {
  if (n < 2) return false;
  for (int d = 2; d * d <= n; ++d) {
    if (n % d == 0) return false;
  }
  return true;
}

// The Jacobsthal matrix of prime q: entry (i, j) is the Legendre symbol of i - j.
Matrix Jacobsthal(int q) {
  std::vector<int> symbol(q, -1);
  symbol[0] = 0;
  for (int i = 1; i < q; ++i) symbol[static_cast<int64_t>(i) * i % q] = 1;
  Matrix out(q, q);
  for (int i = 0; i < q; ++i) {
    for (int j = 0; j < q; ++j) out.at(i, j) = symbol[(i - j + q) % q];
  }
  return out;
}

// H = I + S, S skew with the Jacobsthal matrix inside: order q + 1, q = 3 mod 4.
Matrix PaleyOne(int q) {
  const Matrix jacobsthal = Jacobsthal(q);
  Matrix out(q + 1, q + 1);
  for (int i = 0; i <= q; ++i) {
    for (int j = 0; j <= q; ++j) {
      if (i == 0) {
        out.at(i, j) = 1;
      } else if (j == 0) {
        out.at(i, j) = -1;
      } else {
        out.at(i, j) = jacobsthal.at(i - 1, j - 1) + (i == j ? 1 : 0);
      }
    }
  }
  return out;
}

// The symmetric conference matrix of order q + 1 with each 0 replaced by [1 -1; -1 -1] and each +-1
// by +-[1 1; 1 -1]: order 2 (q + 1), q = 1 mod 4.
Matrix PaleyTwo(int q) {
  const Matrix jacobsthal = Jacobsthal(q);
  Matrix out(2 * (q + 1), 2 * (q + 1));
  for (int i = 0; i <= q; ++i) {
    for (int j = 0; j <= q; ++j) {
      const double entry = i == j ? 0 : (i == 0 || j == 0) ? 1 : jacobsthal.at(i - 1, j - 1);
      out.at(2 * i, 2 * j) = i == j ? 1 : entry;
      out.at(2 * i, 2 * j + 1) = i == j ? -1 : entry;
      out.at(2 * i + 1, 2 * j) = i == j ? -1 : entry;
      out.at(2 * i + 1, 2 * j + 1) = i == j ? -1 : -entry;
    }
  }
  return out;
}

// A +-1 Hadamard matrix of order n, or nothing where these constructions have none.
std::optional<Matrix> SignMatrix(int n) {
  if (n == 1) {
    Matrix one(1, 1);
    one.at(0, 0) = 1;
    return one;
  }
  if (n % 2 != 0) return std::nullopt;
  if (const std::optional<Matrix> half = SignMatrix(n / 2); half.has_value()) {
    Matrix out(n, n);
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        const double entry = half->at(i % (n / 2), j % (n / 2));
        out.at(i, j) = i >= n / 2 && j >= n / 2 ? -entry : entry;
      }
    }
    return out;
  }
  if ((n - 1) % 4 == 3 && IsPrime(n - 1)) return PaleyOne(n - 1);
  if ((n / 2 - 1) % 4 == 1 && IsPrime(n / 2 - 1)) return PaleyTwo(n / 2 - 1);
  return std::nullopt;
}

}  // namespace

Matrix HadamardRotation(int n) {
  Matrix out(n, n);
  for (int begin = 0; begin < n;) {
    int order = n - begin;
    std::optional<Matrix> block = SignMatrix(order);
    while (!block.has_value()) block = SignMatrix(--order);
    const double magnitude = 1.0 / std::sqrt(static_cast<double>(order));
    for (int i = 0; i < order; ++i) {
      const double row = block->at(i, 0) > 0 ? magnitude : -magnitude;
      for (int j = 0; j < order; ++j) out.at(begin + i, begin + j) = block->at(i, j) * row;
    }
    begin += order;
  }
  return out;
}

}  // namespace latentd
