#include "base/ticks.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <fstream>
#include <string>

namespace hetcomm {
namespace {

#if defined(__x86_64__)
// The kernel takes one of these timers when it has found that the counters of the processors differ
// or change their rate.
bool kernel_distrusts_counter() {
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string timer;
  return file >> timer && (timer == "hpet" || timer == "acpi_pm" || timer.ends_with("jiffies"));
}
#endif

bool counter_is_steady() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  const bool invariant = __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & 1u << 8) != 0;
  return invariant && !kernel_distrusts_counter();
#elif defined(__aarch64__)
  return true;
#else
  return false;
#endif
}

struct Pair {
  uint64_t ticks;
  int64_t clock;
};

// The thread may lose its processor between the reads, so the closest of some reads counts.
Pair read_both() {
  Pair best{};
  uint64_t narrowest = UINT64_MAX;
  for (int i = 0; i < 4; ++i) {
    const uint64_t before = Ticks::now();
    const int64_t clock = Clock::now().time_since_epoch().count();
    const uint64_t apart = Ticks::now() - before;
    if (apart >= narrowest) continue;
    narrowest = apart;
    best = {before + apart / 2, clock};
  }
  return best;
}

}  // namespace

const bool Ticks::steady_ = counter_is_steady();

namespace {

const Pair kStart = read_both();

}  // namespace

TickScale::TickScale() {
  const Pair now = read_both();
  ticks_ = now.ticks;
  clock_ = now.clock;
  const auto ticks = static_cast<double>(static_cast<int64_t>(now.ticks - kStart.ticks));
  rate_ = ticks > 0 ? static_cast<double>(now.clock - kStart.clock) / ticks : 1;
}

int64_t TickScale::clock_ns(uint64_t ticks) const {
  const auto ago = static_cast<double>(static_cast<int64_t>(ticks_ - ticks));
  return clock_ - static_cast<int64_t>(ago * rate_);
}

}  // namespace hetcomm
