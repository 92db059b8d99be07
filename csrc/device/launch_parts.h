#pragma once

#include <algorithm>
#include <cstring>
#include <string>

#include "device/kernel_launch.h"

// What kernel_launch.cc and coder_launch.cc share. Values and layouts are those of the same names
// in device/kernels.
namespace hetcomm::launch_parts {

inline constexpr size_t kVectorBytes = 16;
inline constexpr int kMostSources = 256;
struct Sources {
  const void* at[kMostSources];
};

inline constexpr size_t kMostBlocks = 1 << 20;  // in larger calls threads work on several vectors

template <class T>
void add(KernelLaunch& launch, const T& argument) {
  launch.arguments.emplace_back(reinterpret_cast<const char*>(&argument), sizeof argument);
}

inline void set_blocks(KernelLaunch& launch, size_t threads) {
  const size_t blocks = (threads + launch.threads - 1) / launch.threads;
  launch.blocks = static_cast<unsigned>(std::min(blocks, kMostBlocks));
}

inline uintptr_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

inline bool aligned(const void* pointer, size_t bytes) { return address(pointer) % bytes == 0; }

inline std::string qualified(const char* type) { return std::string("hetcomm::") + type; }

inline Status floating(const char* operation, Dtype dtype) {
  if (class_of(dtype) == DtypeClass::floating) return {};
  return Status(Code::invalid_argument, std::string("device ") + operation +
                                            ": expected a floating dtype; got " + name(dtype));
}

inline Status misaligned(const char* operation, size_t bytes, const void* pointer) {
  return Status(Code::invalid_argument, std::string("device ") + operation +
                                            ": expected addresses that are multiples of " +
                                            std::to_string(bytes) + "; got one that is " +
                                            std::to_string(address(pointer) % bytes) + " beyond");
}

// Fails for a number of sources, or an address, that a kernel cannot have.
inline Status make_sources(Sources& all, const char* operation, const void* const* sources,
                           int source_count, size_t alignment) {
  if (source_count < 1 || source_count > kMostSources) {
    return Status(Code::invalid_argument, std::string("device ") + operation +
                                              ": expected 1 to 256 sources; got " +
                                              std::to_string(source_count));
  }
  std::memset(&all, 0, sizeof all);
  for (int s = 0; s < source_count; ++s) {
    if (!aligned(sources[s], alignment)) return misaligned(operation, alignment, sources[s]);
    all.at[s] = sources[s];
  }
  return {};
}

}  // namespace hetcomm::launch_parts
