#include "torch/store.h"

#include <algorithm>

#include "base/status.h"
#include "torch/interrupt.h"

namespace hetcomm {
namespace {

// Between two calls of signal handlers. Every waiting rank then asks the store again.
constexpr std::chrono::milliseconds kStoreInterval(500);

}  // namespace

void TorchStore::set(const std::string& key, const std::string& value) {
  try {
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  } catch (const std::exception& error) {
    throw Error(Code::transport, std::string("the store cannot be written: ") + error.what() +
                                     "; see that rank 0, which serves it, still runs");
  }
}

// An exception before the deadline means that the store's server has ended.
bool TorchStore::wait(const std::string& key, std::chrono::milliseconds time) {
  const Deadline deadline(time);
  try {
    store_->wait({key}, time + std::chrono::milliseconds(1));
    return true;
  } catch (const std::exception&) {
    if (!deadline.passed()) throw;
    return false;
  }
}

std::string TorchStore::get(const std::string& key, const Deadline& deadline) {
  GroupReference no_group(nullptr);  // bootstrap reports the interrupt to the other ranks
  try {
    while (!interrupt_ && !wait(key, std::min(deadline.left_ms(), kStoreInterval))) {
      try {
        handle_signals(no_group, [] { return std::string(); });
      } catch (const std::exception&) {
        interrupt_ = std::current_exception();
      }
      if (deadline.passed()) throw Error(Code::timeout, "no rank has set it");
    }
    throw_interrupt();
    const std::vector<uint8_t> value = store_->get(key);
    return std::string(value.begin(), value.end());
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw Error(deadline.passed() ? Code::timeout : Code::transport,
                "the store has no answer: " + text.substr(0, text.find('\n')));
  }
}

}  // namespace hetcomm
