#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <variant>

namespace hetcomm {

// Blocks of elements with codes of equal length: kernels/codes.cuh.
struct BlockFormat {
  const char* code;  // a type of codes.cuh: "Int8"
  int group = 256;   // elements with one scale; without scales those of one team of threads
  const char* scale = "Float32";  // the scale in memory: a type of numbers.cuh
};

// Blocks of which a share of the elements is kept: kernels/sparse.cuh.
struct SparseFormat {
  double share;

  // Of a block of `count` elements, one at least.
  size_t kept(size_t count) const {
    const auto kept = static_cast<size_t>(std::ceil(share * static_cast<double>(count)));
    return std::clamp<size_t>(kept, 1, count);
  }
  static size_t words(size_t count) { return (count + 63) / 64; }  // of a bit for each element
  // Whether the places of kept elements are numbers, which are then shorter than bits.
  bool numbers(size_t count) const {
    return kept(count) * sizeof(uint16_t) < words(count) * sizeof(uint64_t);
  }
};

// Exponents with short codes: kernels/lossless.cuh.
struct ExponentFormat {};

// How kernels of devices encode.
struct DeviceFormat {
  std::variant<BlockFormat, SparseFormat, ExponentFormat> kind;
};

}  // namespace hetcomm
