#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "base/events.h"
#include "base/fork.h"

namespace hetcomm::loopback {

struct Mailbox;

// A message, shared by both ends.
struct Message {
  // received: by a receive, even if the message was too long. lost: the receiver is gone.
  // cancelled: by the sender.
  enum class State : uint8_t { pending, received, lost, cancelled };

  uint64_t tag = 0;
  const void* data = nullptr;
  size_t bytes = 0;
  std::vector<std::byte> copy;      // of a short message's data
  std::shared_ptr<Mailbox> sender;  // null for a message that needs nothing of the sender any more
  State state = State::pending;

  // Both ends leave the data alone afterwards. The sender is notified.
  void end(State how);
};

// The messages for one transport. The transport and the links to it share the mailbox.
struct Mailbox {
  const Descriptor event = make_eventfd();
  std::deque<std::shared_ptr<Message>> messages;  // since the transport last looked
  std::atomic<bool> news{false};  // a message has come, or a message from here has ended
  bool asleep = false;
  bool closed = false;

  void notify() {
    news.store(true, std::memory_order_release);
    if (std::exchange(asleep, false)) signal_eventfd(event);
  }
};

inline void Message::end(State how) {
  if (state != State::pending) return;
  state = how;
  if (sender) sender->notify();
}

// The loopback transports of this process.
struct Process {
  const uint64_t id = uint64_t{std::random_device{}()} << 32 | std::random_device{}();
  std::mutex mutex;  // guards all messages, mailboxes and the next two
  std::map<uint64_t, std::shared_ptr<Mailbox>> mailboxes;  // by number
  uint64_t next = 0;                                       // number
};

inline Process& process() { return of_process<Process>(); }

}  // namespace hetcomm::loopback
