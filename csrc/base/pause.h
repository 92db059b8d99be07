#pragma once

namespace hetcomm {

// Tells the processor that this thread spins.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace hetcomm
