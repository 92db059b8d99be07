#pragma once

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <cstdint>

namespace hetcomm {

// While it exists, the calling thread rounds to nearest, keeps subnormal numbers and traps nothing.
// A program may have set its own threads otherwise (torch.set_flush_denormal, -ffast-math), and
// timing decides which thread reduces. On x86 and 64-bit Arm.
class FloatingPointDefaults {
 public:
  FloatingPointDefaults() {
    if (changed_) set(kDefaults);
  }
  ~FloatingPointDefaults() {
    if (changed_) set(before_);
  }
  FloatingPointDefaults(const FloatingPointDefaults&) = delete;
  FloatingPointDefaults& operator=(const FloatingPointDefaults&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kDefaults = 0x1f80, kFlags = 0x3f;  // flags: earlier exceptions
  static uint64_t get() { return _mm_getcsr(); }
  static void set(uint64_t control) { _mm_setcsr(static_cast<unsigned>(control)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kDefaults = 0, kFlags = 0;
  static uint64_t get() {
    uint64_t control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    return control;
  }
  static void set(uint64_t control) { asm volatile("msr fpcr, %0" ::"r"(control) : "memory"); }
#else
  static constexpr uint64_t kDefaults = 0, kFlags = 0;
  static uint64_t get() { return kDefaults; }
  static void set(uint64_t) {}
#endif

  const uint64_t before_ = get();
  const bool changed_ = (before_ & ~kFlags) != kDefaults;
};

}  // namespace hetcomm
