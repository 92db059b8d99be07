#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

namespace hetcomm {

// A descriptor that turns readable when signalled, until cleared.
inline int make_eventfd() { return eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); }

inline void signal_eventfd(int descriptor) {
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(descriptor, &one, sizeof one);
}

inline void clear_eventfd(int descriptor) {
  uint64_t value;
  [[maybe_unused]] ssize_t got = read(descriptor, &value, sizeof value);
}

}  // namespace hetcomm
