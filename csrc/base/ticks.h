#pragma once

#include <cstdint>

#include "base/deadline.h"

namespace hetcomm {

// A clock for records on the path of small operations. A read costs 10 ns where one of Clock costs
// 26 ns (2 cores of an AMD EPYC, virtual). Ticks are those of the processor's counter where its
// rate never changes and the kernel trusts it, else ns of Clock.
class Ticks {
 public:
  static uint64_t now() {
    return steady_ ? counter() : static_cast<uint64_t>(Clock::now().time_since_epoch().count());
  }

  // Whether ticks are those of the processor's counter.
  static bool of_processor() { return steady_; }

 private:
  static uint64_t counter() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t value;
    asm volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
#else
    return 0;
#endif
  }
  static const bool steady_;
};

// Translates ticks of this process into ns of Clock. The scale is exact at the process's start and
// at the construction of this object, and assumes one rate between them. Used by one thread.
class TickScale {
 public:
  TickScale();
  int64_t clock_ns(uint64_t ticks) const;
  int64_t ns(uint64_t ticks) const {  // of a span
    return static_cast<int64_t>(static_cast<double>(ticks) * rate_);
  }

 private:
  uint64_t ticks_;
  int64_t clock_;
  double rate_;  // ns of one tick
};

}  // namespace hetcomm
