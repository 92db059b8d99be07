#pragma once

namespace hetcomm {

// Tells the processor that this thread spins.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  // Many processors take `yield` for nothing. This drains the pipeline, so later looks are as far
  // apart as on x86.
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace hetcomm
