#pragma once

#include <cstdint>
#include <string>

#include "base/text.h"

namespace hetcomm {

// "10 Gbit/s"; `bandwidth` in bytes per second.
inline std::string rate_text(int64_t bandwidth) {
  return format_general(static_cast<double>(bandwidth) * 8e-9) + " Gbit/s";
}

}  // namespace hetcomm
