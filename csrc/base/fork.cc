#include "base/fork.h"

#include <pthread.h>

namespace hetcomm {

std::atomic<uint32_t> fork_depth{0};

namespace {

[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { ++fork_depth; });

}  // namespace
}  // namespace hetcomm
