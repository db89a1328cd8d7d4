#include "engine/model/hadamard.h"

#include <cmath>
#include <optional>
#include <utility>

namespace latentd {
namespace {

struct Square {
  explicit Square(int order) : order(order), values(static_cast<size_t>(order) * order) {}

  int order;
  std::vector<double> values;  // row-major

  double& at(int r, int c) { return values[static_cast<size_t>(r) * order + c]; }
  double at(int r, int c) const { return values[static_cast<size_t>(r) * order + c]; }
};

bool IsPrime(int n) {
  if (n < 2) return false;
  for (int d = 2; d * d <= n; ++d) {
    if (n % d == 0) return false;
  }
  return true;
}

// The Jacobsthal matrix of prime q: entry (i, j) is the Legendre symbol of i - j.
Square Jacobsthal(int q) {
  std::vector<int> symbol(q, -1);
  symbol[0] = 0;
  for (int i = 1; i < q; ++i) symbol[static_cast<int64_t>(i) * i % q] = 1;
  Square out(q);
  for (int i = 0; i < q; ++i) {
    for (int j = 0; j < q; ++j) out.at(i, j) = symbol[(i - j + q) % q];
  }
  return out;
}

// H = I + S, S skew with the Jacobsthal matrix inside: order q + 1, q = 3 mod 4.
Square PaleyOne(int q) {
  const Square jacobsthal = Jacobsthal(q);
  Square out(q + 1);
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
Square PaleyTwo(int q) {
  const Square jacobsthal = Jacobsthal(q);
  Square out(2 * (q + 1));
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
std::optional<Square> SignMatrix(int n) {
  if (n == 1) {
    Square one(1);
    one.at(0, 0) = 1;
    return one;
  }
  if (n % 2 != 0) return std::nullopt;
  if (const std::optional<Square> half = SignMatrix(n / 2); half.has_value()) {
    Square out(n);
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

std::vector<double> HadamardRotation(int n) {
  Square out(n);
  for (int begin = 0; begin < n;) {
    int order = n - begin;
    std::optional<Square> block = SignMatrix(order);
    while (!block.has_value()) block = SignMatrix(--order);
    const double magnitude = 1.0 / std::sqrt(static_cast<double>(order));
    for (int i = 0; i < order; ++i) {
      const double row = block->at(i, 0) > 0 ? magnitude : -magnitude;
      for (int j = 0; j < order; ++j) out.at(begin + i, begin + j) = block->at(i, j) * row;
    }
    begin += order;
  }
  return std::move(out.values);
}

}  // namespace latentd
