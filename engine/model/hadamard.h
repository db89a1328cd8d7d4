#pragma once

#include <vector>

namespace latentd {

// An orthonormal matrix [n, n], row-major, whose entries all have one magnitude wherever a Hadamard
// matrix of that order can be built by doubling (Sylvester 1867) from orders 1, q + 1 (q = 3 mod 4
// prime) and 2 (q + 1) (q = 1 mod 4 prime; Paley 1933): all multiples of 16 up to 256. Other orders
// are block diagonal, the largest block first. The first column of a block is positive: the first
// dim, which has the most energy and mostly a mean of one sign, becomes an offset that all rotated
// dims share, and a zero point takes that away.
std::vector<double> HadamardRotation(int n);

}  // namespace latentd
