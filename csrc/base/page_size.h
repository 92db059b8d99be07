#pragma once

#include <unistd.h>

#include <cstdint>

namespace hetcomm {

// Bytes of a page of this system: 4 KiB on x86-64, and 4, 16 or 64 KiB on Arm.
inline int64_t page_size() {
  static const int64_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

}  // namespace hetcomm
