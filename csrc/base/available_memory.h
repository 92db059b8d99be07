#pragma once

#include <cstdint>

namespace hetcomm {

// Bytes that this process may still take without driving others out: of the machine, and of the
// control groups that bound it. The largest number where the system does not say. Thread-safe.
int64_t available_memory();

}  // namespace hetcomm
