#pragma once

#include <cstdint>

namespace hetcomm {

// A kind of memory that a transport must tell apart. Pinned host memory and the memory of an
// emulated vendor are host memory.
enum class MemoryKind : uint8_t { host, cuda, rocm };

// For people.
constexpr const char* name(MemoryKind kind) {
  constexpr const char* names[] = {"host", "CUDA", "ROCm"};
  return names[static_cast<int>(kind)];
}

}  // namespace hetcomm
