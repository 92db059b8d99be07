#include "torch/store.h"

#include <algorithm>
#include <climits>

#include "base/status.h"

namespace hetcomm {

void TorchStore::set(const std::string& key, const std::string& value) {
  try {
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  } catch (const std::exception& error) {
    throw Error(Code::transport, std::string("the store cannot be written: ") + error.what() +
                                     "; see that rank 0, which serves it, still runs");
  }
}

std::string TorchStore::get(const std::string& key, const Deadline& deadline) {
  try {
    // Torch's stores count milliseconds in an int.
    store_->wait({key}, std::min(deadline.left_ms() + std::chrono::milliseconds(1),
                                 std::chrono::milliseconds(INT_MAX)));
    const std::vector<uint8_t> value = store_->get(key);
    return std::string(value.begin(), value.end());
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw Error(deadline.passed() ? Code::timeout : Code::transport,
                "the store has no answer: " + text.substr(0, text.find('\n')));
  }
}

}  // namespace hetcomm
