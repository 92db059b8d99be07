#include "emulated/copy_engine.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "emulated/settings.h"

namespace hetcomm::emulated {

namespace {

constexpr size_t kPortion = 256 * 1024;  // copies of several streams alternate by this size
// A copy that woke late may catch up, by this much at most.
constexpr std::chrono::microseconds kLateness{500};

}  // namespace

void CopyEngine::copy(void* target, const void* source, size_t bytes) {
  if (settings().latency_us > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(settings().latency_us));
  }
  if (settings().copy_rate == 0) {
    std::memmove(target, source, bytes);
    return;
  }
  for (size_t done = 0; done < bytes; done += kPortion) {
    size_t portion = std::min(kPortion, bytes - done);
    std::memcpy(static_cast<char*>(target) + done, static_cast<const char*>(source) + done,
                portion);
    transmit(portion, settings().copy_rate);
  }
}

void CopyEngine::transmit(size_t bytes, int64_t rate) {
  using std::chrono::duration;
  using std::chrono::duration_cast;
  auto span = duration_cast<Clock::duration>(
      duration<double>(static_cast<double>(bytes) / static_cast<double>(rate)));
  Clock::time_point until;
  {
    std::lock_guard lock(mutex_);
    free_at_ = std::max(free_at_, Clock::now() - kLateness) + span;
    until = free_at_;
  }
  std::this_thread::sleep_until(until);
}

}  // namespace hetcomm::emulated
