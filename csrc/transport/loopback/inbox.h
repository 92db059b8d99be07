#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/descriptor.h"

namespace hetcomm::loopback {

class Inbox;

// One message, shared by the two ends. Thread-safe.
class Message {
 public:
  // received: by a receive, even if it was too long. lost: its receiver is gone. cancelled: by its
  // sender.
  enum class State : uint8_t { pending, received, lost, cancelled };

  // Copies the data if they are few, else refers to them until the message is no longer pending.
  Message(uint64_t tag, const void* data, size_t bytes, std::shared_ptr<Inbox> sender);

  uint64_t tag() const { return tag_; }
  size_t bytes() const { return bytes_; }
  // The sender's memory is no longer needed.
  bool copied() const { return data_ == copy_.data() || bytes_ == 0; }
  State state() const { return state_; }
  // Copies at most `capacity` bytes and wakes the sender. False if the message was cancelled.
  bool receive(void* into, size_t capacity);
  void lose();    // and wakes the sender
  void cancel();  // afterwards nobody reads the sender's memory

 private:
  bool finish(State state);

  const uint64_t tag_;
  const size_t bytes_;
  const std::shared_ptr<Inbox> sender_;
  std::mutex mutex_;  // while the receiver copies
  std::vector<std::byte> copy_;
  const void* data_;
  std::atomic<State> state_{State::pending};
};

// Where the messages for one transport arrive. Shared by the transport and the links to it.
// Thread-safe.
class Inbox {
 public:
  Inbox();  // throws Error(transport)

  // False once closed.
  bool put(std::shared_ptr<Message> message);
  // The messages since the last call, in order.
  std::deque<std::shared_ptr<Message>> take();
  // Whether a message has come, or a sent one was received, since the last call.
  bool take_news() { return news_.exchange(false, std::memory_order_acquire); }
  void wake();   // its transport, which has news
  void close();  // loses all messages

  int event_fd() const { return event_; }
  bool prepare_to_sleep();  // see Transport

 private:
  void notify();  // under the mutex

  const Descriptor event_;
  std::mutex mutex_;
  std::deque<std::shared_ptr<Message>> messages_;
  std::atomic<bool> news_{false};
  bool asleep_ = false;
  bool closed_ = false;
};

}  // namespace hetcomm::loopback
