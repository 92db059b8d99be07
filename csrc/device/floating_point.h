#pragma once

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace hetcomm {

// While it exists, the calling thread rounds to nearest, keeps subnormal numbers and traps nothing.
// A program may have set its own threads otherwise (torch.set_flush_denormal, -ffast-math), and
// timing decides which thread reduces. On x86 only.
class FloatingPointDefaults {
 public:
#ifdef __x86_64__
  FloatingPointDefaults() {
    if (changed_) _mm_setcsr(kDefaults);
  }
  ~FloatingPointDefaults() {
    if (changed_) _mm_setcsr(before_);
  }
  FloatingPointDefaults(const FloatingPointDefaults&) = delete;
  FloatingPointDefaults& operator=(const FloatingPointDefaults&) = delete;

 private:
  static constexpr unsigned kDefaults = 0x1f80, kFlags = 0x3f;  // flags: earlier exceptions

  const unsigned before_ = _mm_getcsr();
  const bool changed_ = (before_ & ~kFlags) != kDefaults;
#endif
};

}  // namespace hetcomm
