// Runs device kernels as plain C++, to test their arithmetic without a device. Replaces the headers
// of HIP; the tested text is included after this file. Threads of a warp take turns and switch only
// at shuffles and ballots. All 32 must come to the same one. Every second warp is the upper half of
// a wavefront of 64 threads, and the other half has any bits in a ballot.
#pragma once

#include <ucontext.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#define __HIPCC__ 1
#define __global__
#define __device__
#define __forceinline__ inline
#if defined(__aarch64__) && defined(__GNUC__) && __GNUC__ < 13 && !defined(__clang__)
#define _Float16 __fp16  // the same format under an older name
#endif

struct Index {
  unsigned x;
};
static Index gridDim, blockDim, blockIdx, threadIdx;

namespace shim {

constexpr int kWarp = 32;
constexpr size_t kStackBytes = 256 << 10;

struct Thread {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(kStackBytes);
  bool finished;
  int offered;           // to the other threads of the warp
  const char* exchange;  // the function, and its second argument
  int argument;
};

static ucontext_t scheduler;
static std::vector<Thread> warp(kWarp);
static std::array<int, kWarp> offers;  // of the latest exchange, by lane
static Thread* current;
static const std::function<void()>* body;

static void start() {
  (*body)();
  current->finished = true;
}

// Ends the exchange to which all threads have come.
static void end_exchange() {
  for (int lane = 0; lane < kWarp; ++lane) {
    const Thread &one = warp[0], &other = warp[lane];
    offers[lane] = other.offered;
    if (std::strcmp(one.exchange, other.exchange) == 0 && one.argument == other.argument) continue;
    std::fprintf(stderr, "threads came to %s and to %s\n", one.exchange, other.exchange);
    std::abort();
  }
}

static void run_warp(unsigned first) {
  for (Thread& thread : warp) {
    thread.finished = false;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data();
    thread.context.uc_stack.ss_size = thread.stack.size();
    thread.context.uc_link = &scheduler;
    makecontext(&thread.context, start, 0);
  }
  for (int finished = 0; finished == 0;) {
    for (int lane = 0; lane < kWarp; ++lane) {
      current = &warp[lane];
      threadIdx.x = first + lane;
      swapcontext(&scheduler, &current->context);
      finished += current->finished;
    }
    if (finished == 0) end_exchange();
    if (finished != 0 && finished != kWarp) {
      std::fprintf(stderr, "%d of 32 threads did not come to an exchange\n", finished);
      std::abort();
    }
  }
}

template <class... Arguments, size_t... index>
void call(void (*kernel)(Arguments...), void** arguments, std::index_sequence<index...>) {
  kernel(*static_cast<std::remove_const_t<Arguments>*>(arguments[index])...);
}

template <class... Arguments>
void launch(void (*kernel)(Arguments...), unsigned blocks, unsigned threads, void** arguments) {
  const std::function<void()> thread = [=] {
    call(kernel, arguments, std::index_sequence_for<Arguments...>());
  };
  body = &thread;
  gridDim.x = blocks;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (unsigned first = 0; first < threads; first += kWarp) run_warp(first);
  }
}

// The values that all threads of the warp offer.
inline const std::array<int, kWarp>& exchange(int value, const char* function, int argument) {
  Thread* const self = current;
  self->offered = value;
  self->exchange = function;
  self->argument = argument;
  swapcontext(&self->context, &scheduler);
  return offers;
}

inline int lane_of_current() { return static_cast<int>(current - warp.data()); }

}  // namespace shim

inline int __lane_id() { return static_cast<int>(threadIdx.x % 64); }

inline int __shfl_xor(int value, int mask, int) {
  const int lane = shim::lane_of_current();
  return shim::exchange(value, __func__, mask)[lane ^ mask];
}

inline int __shfl(int value, int lane, int) { return shim::exchange(value, __func__, lane)[lane]; }

inline unsigned long long __ballot(int condition) {
  unsigned long long bits = 0;
  const auto& all = shim::exchange(condition != 0, __func__, 0);
  for (int lane = 0; lane < shim::kWarp; ++lane) {
    bits |= static_cast<unsigned long long>(all[lane]) << lane;
  }
  constexpr unsigned long long kOther = 0xa5a5a5a5;
  bits = (__lane_id() & 32) != 0 ? bits << 32 | kOther : bits | kOther << 32;
  return bits;
}
