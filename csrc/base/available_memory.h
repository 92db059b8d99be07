#pragma once

#include <cstdint>

namespace hetcomm {

// Bytes that this process can still take without swapping: of the machine, and of the control
// groups that bound the process. The largest number if the system does not say. Thread-safe.
int64_t available_memory();

}  // namespace hetcomm
