#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/status.h"
#include "base/system_text.h"

namespace hetcomm {

// Owns the descriptor that a system call returned. Throws Error(transport) if the call failed.
inline Descriptor own_descriptor(int descriptor, const char* what) {
  if (descriptor >= 0) return Descriptor(descriptor);
  const bool refused = errno == EPERM || errno == EACCES || errno == ENOSYS;
  throw Error(Code::transport,
              system_text("cannot make ", what, ": ", kReason,
                          refused ? "; see what refuses the system call, such as a seccomp filter"
                                  : "; raise the descriptor limit (ulimit -n)"));
}

// This process may still have so many descriptors; `what` needs them. Throws Error(transport).
inline void require_descriptors(int count, const std::string& what) {
  std::vector<Descriptor> taken;
  while (static_cast<int>(taken.size()) < count) {
    Descriptor next(eventfd(0, EFD_CLOEXEC));
    if (next < 0) {
      const std::string why =
          system_text(": ", kReason, "; raise the descriptor limit (ulimit -n)");
      throw Error(Code::transport, what + ": expected " + std::to_string(count) +
                                       " free descriptors; got " + std::to_string(taken.size()) +
                                       why);
    }
    taken.push_back(std::move(next));
  }
}

inline Descriptor make_epoll() {
  return own_descriptor(epoll_create1(EPOLL_CLOEXEC), "an epoll descriptor");
}

// `epoll` reports these events of the descriptor, and errors in any case. Throws Error(transport).
inline void add_to_epoll(int epoll, int descriptor, uint32_t events = EPOLLIN) {
  epoll_event event{};
  event.events = events;
  event.data.fd = descriptor;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) == 0) return;
  const char* remedy = errno == ENOSPC ? "; raise fs.epoll.max_user_watches" : "";
  throw Error(Code::transport, system_text("epoll_ctl: ", kReason, remedy));
}

// A descriptor that turns readable when signalled, until cleared.
inline Descriptor make_eventfd() {
  return own_descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "an eventfd");
}

inline void signal_eventfd(int descriptor) {
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(descriptor, &one, sizeof one);
}

inline void clear_eventfd(int descriptor) {
  uint64_t value;
  [[maybe_unused]] ssize_t got = read(descriptor, &value, sizeof value);
}

}  // namespace hetcomm
