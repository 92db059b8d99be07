#pragma once

#include <cstdint>

namespace hetcomm {

// Whose memory an address belongs to, as a transport must know it. Pinned host memory is host
// memory, and so is that of an emulated vendor.
enum class MemoryKind : uint8_t { host, cuda, rocm };

// For people.
constexpr const char* name(MemoryKind kind) {
  constexpr const char* names[] = {"host", "CUDA", "ROCm"};
  return names[static_cast<int>(kind)];
}

}  // namespace hetcomm
