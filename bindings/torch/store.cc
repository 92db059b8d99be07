#include "torch/store.h"

#include <algorithm>

#include "base/status.h"
#include "torch/interrupt.h"

namespace hetcomm {
namespace {

// Between two looks for signals. Every waiting rank asks the store again after each.
constexpr std::chrono::milliseconds kStoreLook(500);

}  // namespace

void TorchStore::set(const std::string& key, const std::string& value) {
  try {
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  } catch (const std::exception& error) {
    throw Error(Code::transport, std::string("the store cannot be written: ") + error.what() +
                                     "; see that rank 0, which serves it, still runs");
  }
}

// A store that is gone fails sooner.
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
  GroupReference none(nullptr);  // set-up tells the other ranks
  try {
    while (!interrupt_ && !wait(key, std::min(deadline.left_ms(), kStoreLook))) {
      try {
        handle_signals(none, [] { return std::string(); });
      } catch (const std::exception&) {
        interrupt_ = std::current_exception();
      }
      if (deadline.passed()) throw Error(Code::timeout, "nobody has set it");
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
