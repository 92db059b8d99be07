#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace hetcomm {

// "10 Gbit/s"; `bandwidth` in bytes per second.
inline std::string rate_text(int64_t bandwidth) {
  char text[32];
  std::snprintf(text, sizeof text, "%g Gbit/s", static_cast<double>(bandwidth) * 8e-9);
  return text;
}

}  // namespace hetcomm
