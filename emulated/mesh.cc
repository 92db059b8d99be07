#include "emulated/mesh.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "emulated/calls.h"

namespace hetcomm::emulated {

namespace {

constexpr const char* kClosed = "was closed by its process";

struct Greeting {
  uint8_t magic[16];
  int32_t rank;
};

struct Frame {  // precedes the bytes of every message
  Label label;
  uint64_t bytes;
};

std::string describe(const Frame& frame) {
  return call_name(frame.label.kind) + " #" + std::to_string(frame.label.sequence) + " (type " +
         std::to_string(frame.label.type) + ", op " + std::to_string(frame.label.op) + ", " +
         std::to_string(frame.bytes) + " bytes)";
}

struct Transfer {
  Message message;
  Frame frame{};
  size_t done = 0;  // of frame and bytes

  size_t total() const { return sizeof(Frame) + message.bytes; }
  bool complete() const { return done == total(); }
};

class Queue {  // the transfers of one direction with one peer
 public:
  void add(const Message& message) {
    Transfer transfer{message};
    transfer.frame = {message.label, message.bytes};
    transfers_.push_back(transfer);
  }
  bool empty() const { return next_ == transfers_.size(); }
  // Both return whether any byte moved.
  bool send(int descriptor, int rank);
  bool receive(int descriptor, int rank);
  short sends() const { return empty() ? 0 : POLLOUT; }  // for poll()
  short receives() const {
    if (empty()) return 0;
    return unmatched_ ? POLLRDHUP : POLLIN;
  }

 private:
  bool matches(const Transfer& transfer, const Frame& expected, int rank) const;

  std::vector<Transfer> transfers_;
  size_t next_ = 0;
  bool unmatched_ = false;  // the peer's call is not the own one, so nothing more is received
};

[[noreturn]] void throw_gone(int rank, int peer, const char* how) {
  throw Failure{ccl_remote_error, "rank " + std::to_string(rank) + ": the connection to rank " +
                                      std::to_string(peer) + " " + how};
}

bool hung_up(int descriptor) {
  pollfd polled{descriptor, POLLRDHUP, 0};
  return poll(&polled, 1, 0) > 0;
}

bool Queue::send(int descriptor, int rank) {
  bool moved = false;
  while (!empty()) {
    Transfer& transfer = transfers_[next_];
    size_t framed = std::min(transfer.done, sizeof(Frame));
    iovec parts[2] = {
        {reinterpret_cast<char*>(&transfer.frame) + framed, sizeof(Frame) - framed},
        {static_cast<char*>(transfer.message.data) + (transfer.done - framed),
         transfer.message.bytes - (transfer.done - framed)},
    };
    msghdr header{};
    header.msg_iov = parts;
    header.msg_iovlen = 2;
    ssize_t sent = sendmsg(descriptor, &header, MSG_NOSIGNAL);
    if (sent < 0) {
      if (retry()) return moved;
      throw_gone(rank, transfer.message.peer, std::strerror(errno));
    }
    moved = true;
    transfer.done += static_cast<size_t>(sent);
    if (transfer.complete()) ++next_;
  }
  return moved;
}

bool Queue::receive(int descriptor, int rank) {
  bool moved = false;
  while (!empty()) {
    Transfer& transfer = transfers_[next_];
    if (unmatched_) {
      if (hung_up(descriptor)) throw_gone(rank, transfer.message.peer, kClosed);
      return moved;
    }
    Frame expected = {transfer.message.label, transfer.message.bytes};
    bool framing = transfer.done < sizeof(Frame);
    char* target =
        framing ? reinterpret_cast<char*>(&transfer.frame) + transfer.done
                : static_cast<char*>(transfer.message.data) + (transfer.done - sizeof(Frame));
    size_t wanted = framing ? sizeof(Frame) - transfer.done : transfer.total() - transfer.done;
    if (wanted > 0) {
      ssize_t got = recv(descriptor, target, wanted, 0);
      if (got < 0 && retry()) return moved;
      if (got < 0) throw_gone(rank, transfer.message.peer, std::strerror(errno));
      if (got == 0) throw_gone(rank, transfer.message.peer, kClosed);
      moved = true;
      transfer.done += static_cast<size_t>(got);
    }
    if (framing && transfer.done == sizeof(Frame)) unmatched_ = !matches(transfer, expected, rank);
    if (!unmatched_ && transfer.complete()) ++next_;
  }
  return moved;
}

// False if one member ends the communicator, and the other does not. Both then stand still.
bool Queue::matches(const Transfer& transfer, const Frame& expected, int rank) const {
  if (std::memcmp(&transfer.frame, &expected, sizeof(Frame)) == 0) return true;
  const auto end = static_cast<uint16_t>(CallKind::end);
  if (transfer.frame.label.kind == end || expected.label.kind == end) return false;
  throw Failure{ccl_invalid_usage, "rank " + std::to_string(rank) + " makes " + describe(expected) +
                                       ", but rank " + std::to_string(transfer.message.peer) +
                                       " makes " + describe(transfer.frame) +
                                       "; members must make the same calls in the same order"};
}

void deliver_to_self(const std::vector<Message>& sends, const std::vector<Message>& receives) {
  if (sends.size() != receives.size()) {
    throw Failure{ccl_invalid_usage, "sends to the own rank need as many recvs in the same group"};
  }
  for (size_t i = 0; i < sends.size(); ++i) {
    if (sends[i].bytes != receives[i].bytes) {
      throw Failure{ccl_invalid_usage, "a send to the own rank has another size than its recv"};
    }
    std::memmove(receives[i].data, sends[i].data, sends[i].bytes);
  }
}

}  // namespace

Mesh::Mesh(int rank, const std::vector<Contact>& contacts, const uint8_t (&magic)[16],
           const Socket& listener, const Stop& stop)
    : rank_(rank), sockets_(contacts.size()) {
  for (const Contact& contact : contacts) places_.push_back(contact.place);
  Greeting greeting{};
  std::memcpy(greeting.magic, magic, sizeof magic);
  greeting.rank = rank;
  for (int peer = 0; peer < rank; ++peer) {
    size_t index = static_cast<size_t>(peer);
    sockets_[index] = Socket::connect_to(contacts[index].address, stop);
    sockets_[index].send_all(&greeting, sizeof greeting, stop);
  }
  for (int missing = size() - rank - 1; missing > 0;) {
    Socket came = listener.accept(stop);
    Greeting theirs{};
    if (!came.receive_all(&theirs, sizeof theirs, stop, kGreetingTimeout)) continue;
    if (std::memcmp(theirs.magic, magic, sizeof magic) != 0) continue;
    if (theirs.rank <= rank || theirs.rank >= size()) continue;
    Socket& place = sockets_[static_cast<size_t>(theirs.rank)];
    if (place.open()) continue;
    place = std::move(came);
    --missing;
  }
}

void Mesh::exchange(const std::vector<Message>& sends, const std::vector<Message>& receives,
                    const Stop& stop) {
  std::vector<Queue> out(sockets_.size()), in(sockets_.size());
  std::vector<Message> to_self, from_self;
  for (const Message& message : sends) {
    if (message.peer == rank_) {
      to_self.push_back(message);
    } else {
      out[static_cast<size_t>(message.peer)].add(message);
    }
  }
  for (const Message& message : receives) {
    if (message.peer == rank_) {
      from_self.push_back(message);
    } else {
      in[static_cast<size_t>(message.peer)].add(message);
    }
  }
  deliver_to_self(to_self, from_self);
  std::vector<pollfd> polled;
  while (true) {
    if (stop.raised()) throw Aborted{};
    bool moved = false;
    polled.clear();
    for (size_t peer = 0; peer < sockets_.size(); ++peer) {
      int descriptor = sockets_[peer].descriptor();
      if (!out[peer].empty()) moved |= out[peer].send(descriptor, rank_);
      if (!in[peer].empty()) moved |= in[peer].receive(descriptor, rank_);
      const auto events = static_cast<short>(out[peer].sends() | in[peer].receives());
      if (events != 0) polled.push_back({descriptor, events, 0});
    }
    if (polled.empty()) return;
    if (!moved) poll_briefly(polled);
  }
}

}  // namespace hetcomm::emulated
