#!/usr/bin/env python3
"""Writes dtype_goldens.h: random blocks of every quantised type and the values that the gguf package reads from them.

Usage: make_dtype_goldens.py > dtype_goldens.h      (needs: pip install gguf==0.19.0 numpy)
"""

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize

# type, block bytes, values in a block, byte offsets of the block's halves
TYPES = [
    ("Q4_0", 18, 32, [0]),
    ("Q4_1", 20, 32, [0, 2]),
    ("Q5_0", 22, 32, [0]),
    ("Q5_1", 24, 32, [0, 2]),
    ("Q8_0", 34, 32, [0]),
    ("Q4_K", 144, 256, [0, 2]),
    ("Q5_K", 176, 256, [0, 2]),
    ("Q6_K", 210, 256, [208]),
]


def lines(items, per_line):
    return "".join(
        "    " + ", ".join(items[i : i + per_line]) + ",\n" for i in range(0, len(items), per_line)
    )


def main():
    rng = np.random.default_rng(20240229)
    print("// Written by make_dtype_goldens.py with the gguf package: do not edit.")
    print("#pragma once\n\n#include <cstdint>\n#include <vector>\n\n#include \"kernels/dtype.h\"\n")
    print("// clang-format off")
    print("namespace latentd {\n")
    print("struct DTypeGolden {\n  DType dtype;\n  std::vector<uint8_t> row;")
    print("  std::vector<uint32_t> values;  // bits of the floats\n};\n")
    print("inline const std::vector<DTypeGolden>& DTypeGoldens() {")
    print("  static const std::vector<DTypeGolden> kGoldens = {")
    for name, block_bytes, block_values, halves in TYPES:
        blocks = 2 if block_values == 32 else 1
        raw = rng.integers(0, 256, size=(blocks, block_bytes), dtype=np.uint8)
        for block in raw:
            for offset in halves:
                half = np.array([rng.normal() * 0.1], dtype=np.float16)
                block[offset : offset + 2] = half.view(np.uint8)
        values = dequantize(raw.reshape(1, -1), Type[name]).astype(np.float32).ravel()
        assert values.size == blocks * block_values and np.isfinite(values).all()
        print(f"    {{DType::k{name}, {{")
        print(lines([str(b) for b in raw.ravel()], 24), end="")
        print("    }, {")
        print(lines([f"0x{v:08x}" for v in values.view(np.uint32)], 8), end="")
        print("    }},")
    print("  };\n  return kGoldens;\n}\n\n}  // namespace latentd\n// clang-format on")


if __name__ == "__main__":
    main()
