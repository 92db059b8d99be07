#include "torch/store.h"

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/status.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

// Between two questions for a key.
constexpr Clock::duration kShortestPause = 1ms, kLongestPause = 200ms;

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

void TorchStore::set(const std::string& key, const std::string& value, const Deadline&) {
  try {
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  } catch (const std::exception& error) {
    throw Error(Code::transport, place() + " cannot be written: " + first_line(error) +
                                     "; see that the process that serves it still runs");
  }
}

void TorchStore::remove(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) store_->deleteKey(key);
}

// torch's wait() writes warnings into the log while a key is not set.
std::string TorchStore::get(const std::string& key, const Deadline& deadline) {
  const auto begin = Clock::now();
  while (true) {
    try {
      if (store_->check({key})) {
        const std::vector<uint8_t> value = store_->get(key);
        return {value.begin(), value.end()};
      }
    } catch (const std::exception& error) {
      throw Error(Code::transport, place() + " has no answer: " + first_line(error) +
                                       "; see that the process that serves it still runs");
    }
    if (deadline.passed()) throw Error(Code::timeout, "no rank has set it");
    const auto pause =
        std::clamp<Clock::duration>((Clock::now() - begin) / 10, kShortestPause, kLongestPause);
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause, deadline.left()));
  }
}

std::string TorchStore::place() const {
  auto inner = store_;
  while (const auto* prefixed = dynamic_cast<c10d::PrefixStore*>(inner.get())) {
    inner = const_cast<c10d::PrefixStore*>(prefixed)->getUnderlyingStore();
  }
  const auto* tcp = dynamic_cast<c10d::TCPStore*>(inner.get());
  if (tcp == nullptr) return "torch's store";
  return "torch's store at " + tcp->getHost() + ":" + std::to_string(tcp->getPort());
}

}  // namespace hetcomm
