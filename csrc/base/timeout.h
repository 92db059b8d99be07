#pragma once

#include <cmath>

#include "base/deadline.h"
#include "base/status.h"
#include "base/text.h"

namespace hetcomm {

// A timeout as its caller gave it, at most the longest. Throws Error(invalid_argument) for a
// negative one and for NaN.
inline std::chrono::nanoseconds given_timeout(Seconds asked) {
  if (asked.count() >= 0) return timeout_of(asked);
  throw Error(Code::invalid_argument, "timeout: expected 0 seconds or more, got " +
                                          format_general(asked.count()) +
                                          "; give a time, or none for that of the group");
}

// A timeout of torch's. A timedelta of more than 292,000 years overflows there, mostly to a number
// far below zero.
inline std::chrono::nanoseconds torch_timeout(std::chrono::milliseconds given) {
  return given < -kLongestTimeout ? kLongestTimeout : given_timeout(given);
}

}  // namespace hetcomm
