#pragma once

namespace hetcomm {

// How a lossy codec encodes blocks of elements, for the kernels of devices: kernels/codes.cuh.
struct BlockFormat {
  const char* code;  // a type of codes.cuh: "Int8"
  int group = 256;   // elements with one scale; without scales those of one team of threads
  const char* scale = "Float32";  // the scale in memory: a type of numbers.cuh
};

}  // namespace hetcomm
