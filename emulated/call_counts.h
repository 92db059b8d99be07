#pragma once

#include <source_location>

namespace hetcomm::emulated {

// With HETCOMM_EMULATED_CALLS=1, counts the calls of each exported function. Thread-safe.
void count_call(const std::source_location& where);

}  // namespace hetcomm::emulated
