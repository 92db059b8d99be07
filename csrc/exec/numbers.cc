#include "exec/numbers.h"

#include <string>

#include "base/fork.h"
#include "base/status.h"
#include "exec/paths.h"

namespace hetcomm {
namespace {

Numbers& of_this_process() { return of_process<Numbers>(Paths::kMaxCommunicators); }

}  // namespace

uint32_t Numbers::take() {
  std::lock_guard lock(mutex_);
  const auto limit = static_cast<uint32_t>(taken_.size());
  for (uint32_t tried = 0; tried < limit; ++tried) {
    const uint32_t number = next_;
    next_ = (next_ + 1) % limit;
    if (taken_[number]) continue;
    taken_[number] = true;
    return number;
  }
  throw Error(Code::invalid_argument, "expected at most " + std::to_string(limit) +
                                          " process groups at a time in one process, got one more; "
                                          "destroy those that are no longer needed");
}

void Numbers::release(uint32_t number) {
  std::lock_guard lock(mutex_);
  taken_.at(number) = false;
}

CommunicatorNumber::CommunicatorNumber() : value_(of_this_process().take()) {}

CommunicatorNumber::~CommunicatorNumber() { of_this_process().release(value_); }

}  // namespace hetcomm
