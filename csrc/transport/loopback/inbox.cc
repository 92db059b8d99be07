#include "transport/loopback/inbox.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/eventfd.h"
#include "base/status.h"

namespace hetcomm::loopback {
namespace {

constexpr size_t kMostCopied = 8 << 10;  // bytes

}  // namespace

Message::Message(uint64_t tag, const void* data, size_t bytes, std::shared_ptr<Inbox> sender)
    : tag_(tag), bytes_(bytes), sender_(std::move(sender)), data_(data) {
  if (bytes == 0 || bytes > kMostCopied) return;
  const auto* from = static_cast<const std::byte*>(data);
  copy_.assign(from, from + bytes);
  data_ = copy_.data();
}

bool Message::finish(State state) {
  State pending = State::pending;
  return state_.compare_exchange_strong(pending, state, std::memory_order_acq_rel);
}

bool Message::receive(void* into, size_t capacity) {
  {
    std::lock_guard lock(mutex_);
    if (state_ != State::pending) return false;
    if (bytes_ > 0 && bytes_ <= capacity) std::memcpy(into, data_, bytes_);
    finish(State::received);
  }
  if (!copied()) sender_->wake();
  return true;
}

void Message::lose() {
  if (finish(State::lost) && !copied()) sender_->wake();
}

void Message::cancel() {
  std::lock_guard lock(mutex_);
  finish(State::cancelled);
}

Inbox::Inbox() : event_(make_eventfd()) {
  if (event_ >= 0) return;
  throw Error(Code::transport, std::string("cannot make an eventfd: ") + std::strerror(errno) +
                                   "; raise the descriptor limit (ulimit -n)");
}

void Inbox::notify() {
  news_.store(true, std::memory_order_release);
  if (std::exchange(asleep_, false)) signal_eventfd(event_);
}

bool Inbox::put(std::shared_ptr<Message> message) {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  messages_.push_back(std::move(message));
  notify();
  return true;
}

std::deque<std::shared_ptr<Message>> Inbox::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(messages_, {});
}

void Inbox::wake() {
  std::lock_guard lock(mutex_);
  if (!closed_) notify();
}

void Inbox::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  for (const auto& message : take()) message->lose();
}

bool Inbox::prepare_to_sleep() {
  clear_eventfd(event_);
  std::lock_guard lock(mutex_);
  asleep_ = !news_.load(std::memory_order_relaxed);
  return asleep_;
}

}  // namespace hetcomm::loopback
