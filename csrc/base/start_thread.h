#pragma once

#include <pthread.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/status.h"

namespace hetcomm {

// A thread that runs `life()`. `name`: a literal of at most 15 characters. Throws Error(vendor) if
// the system permits no further thread: a limit of this rank is the consequence of no other rank.
template <typename Life>
std::thread start_thread(const char* name, Life life) {
  try {
    return std::thread([name, life = std::move(life)]() mutable {
      pthread_setname_np(pthread_self(), name);
      life();
    });
  } catch (const std::system_error& error) {
    throw Error(Code::vendor, std::string("cannot start the thread \"") + name +
                                  "\": " + error.what() +
                                  "; raise the limit of processes (ulimit -u, or pids.max of "
                                  "the control group) or of addresses (ulimit -v)");
  }
}

}  // namespace hetcomm
