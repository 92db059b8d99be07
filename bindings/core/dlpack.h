#pragma once

#include <cstdint>

// The structures of DLPack 0.8 and 1.x, in which array libraries hand their memory to each other
// (https://dmlc.github.io/dlpack/latest/c_api.html).
namespace hetcomm::dlpack {

// Kinds of memory that a host reads and writes; all others belong to devices.
// Vendors' rows have the numbers of their pinned host memory.
inline constexpr int32_t kCpu = 1;
inline constexpr uint8_t kComplex = 5;  // a kind of elements; base/dtype.h has the others
inline constexpr uint64_t kReadOnly = 1, kCopied = 2;  // flags

struct Device {
  int32_t type, index;
};

struct ElementType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t dimensions;
  ElementType type;
  int64_t* shape;
  int64_t* strides;  // in elements; null: C-contiguous
  uint64_t byte_offset;
};

struct Unversioned {  // in a capsule "dltensor"
  Tensor tensor;
  void* context;
  void (*deleter)(Unversioned* self);
};

struct Versioned {  // in a capsule "dltensor_versioned"
  uint32_t major, minor;
  void* context;
  void (*deleter)(Versioned* self);
  uint64_t flags;
  Tensor tensor;
};

}  // namespace hetcomm::dlpack
