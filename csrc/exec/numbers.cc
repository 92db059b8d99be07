#include "exec/numbers.h"

#include <bit>
#include <iterator>
#include <string>

#include "base/fork.h"
#include "base/status.h"
#include "exec/paths.h"

namespace hetcomm {
namespace {

Numbers& of_this_process() { return of_process<Numbers>(Paths::kSenderNumbers); }

uint64_t round_up(uint64_t number, uint64_t unit) { return (number + unit - 1) / unit * unit; }

}  // namespace

uint32_t Numbers::take(uint32_t count) {
  std::lock_guard lock(mutex_);
  uint64_t first = round_up(next_, count);
  for (bool from_zero = false;;) {
    if (first + count > limit_) {
      if (from_zero) break;
      from_zero = true;
      first = 0;
      continue;
    }
    const auto after = taken_.lower_bound(static_cast<uint32_t>(first + count));
    if (after == taken_.begin() || std::prev(after)->second <= first) {
      next_ = static_cast<uint32_t>(first + count);
      taken_[static_cast<uint32_t>(first)] = next_;
      return static_cast<uint32_t>(first);
    }
    first = round_up(std::prev(after)->second, count);
  }
  throw Error(Code::invalid_argument,
              "expected process groups with together at most " + std::to_string(limit_) +
                  " ranks at a time in one process, got one of " + std::to_string(count) +
                  " more; destroy those that are no longer needed");
}

void Numbers::release(uint32_t first) {
  std::lock_guard lock(mutex_);
  taken_.erase(first);
}

SenderNumbers::SenderNumbers(int ranks)
    : first_(of_this_process().take(std::bit_ceil(static_cast<uint32_t>(ranks)))) {}

SenderNumbers::~SenderNumbers() { of_this_process().release(first_); }

}  // namespace hetcomm
