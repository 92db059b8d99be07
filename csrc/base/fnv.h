#pragma once

#include <cstdint>
#include <string_view>

namespace hetcomm {

inline constexpr uint64_t kFnvBasis = 0xcbf29ce484222325;

// FNV-1a, 64 bits: the same on every machine. `value`: the hash of earlier bytes.
constexpr uint64_t fnv1a(std::string_view bytes, uint64_t value = kFnvBasis) {
  for (char byte : bytes) value = (value ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return value;
}

}  // namespace hetcomm
