#pragma once

namespace hetcomm {

// How a lossy codec encodes blocks of elements, for the kernels of devices: kernels/codes.cuh.
struct BlockFormat {
  const char* code;  // a type of codes.cuh: "Int8"
  int group = 256;   // elements with one scale; without scales those of one team of threads
};

}  // namespace hetcomm
