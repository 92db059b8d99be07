#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/memory_kind.h"
#include "base/status.h"

namespace hetcomm {

// One message in flight. Owned by the caller. The request and its memory stay alive and in place
// until done. A request completes within Transport::progress(), the posting call, or a call that
// cancels.
struct Request {
  bool done = true;
  Status status;
  size_t bytes = 0;        // received bytes
  uint64_t tag = 0;        // received tag
  void* handle = nullptr;  // for the transport
};

// A short message between the two ends of a link, for a transport that combines this link with
// others. Notes keep their order.
struct Note {
  static constexpr size_t kMostTags = 32;
  uint64_t kind = 0, tag = 0, place = 0, stripe = 0, answer = 0;
  std::array<uint64_t, kMostTags> tags{};
};

// A point-to-point channel to one peer. Owned by one communicator. Messages with matching tags
// arrive in sending order. Not thread-safe: every call comes under the executor's lock.
//
// Both ends of a link are made, opened and closed together. Before open() the owners of the two
// ends exchange offer(). While the offers differ, each end calls counter() with the other's offer.
class Link {
 public:
  virtual ~Link() = default;
  // Identifies this end for the other end; empty if the transport needs no agreement.
  virtual std::string offer() const { return {}; }
  // Replaces this end's offer by one greater than both offers, the same on both ends. Each group
  // has its own `spread`, so that groups that counter at the same time make different offers.
  virtual void counter(const std::string& /*theirs*/, uint64_t /*spread*/) {}
  // Comes before the first send, and before the first receive from the peer. Does not wait for the
  // peer; a second call does nothing. Throws Error(transport) if the peer cannot be reached.
  virtual void open() = 0;
  // Starts sending; a small message may be complete on return (request.done). `memory`: the kind of
  // memory at `data`.
  virtual void send(uint64_t tag, const void* data, size_t bytes, MemoryKind memory,
                    Request& request) = 0;
  // The owner has received a message of so many bytes from this peer. A transport may thus bound
  // the memory of messages without a receive.
  virtual void consume(size_t /*bytes*/) {}
  // Sends a note to the other end of an open link. Only for transports that stripes are made of.
  virtual void tell(const Note& /*note*/) {}
  // `hear` gets the notes of the other end, within Transport::progress().
  virtual void listen(std::function<void(const Note&)> /*hear*/) {}
  // A stripe no longer reaches the peer. The other stripes carry its share, also of messages in
  // flight. The last stripe stays. Both ends may learn of it in either order.
  virtual void lose(size_t /*stripe*/) {}
  // The stripes lost so far.
  virtual std::vector<size_t> lost_stripes() const { return {}; }
  // Starts closing. With `flush`, sent data drains, for which the peer must progress, too.
  // Otherwise cancels everything in flight, also after an earlier flush. closed() turns true within
  // this call or Transport::progress(), once nothing is in flight.
  virtual void close(bool flush) = 0;
  virtual bool closed() const = 0;
  // The connection to the peer has failed.
  virtual bool failed() const { return false; }
  // For people: "tcp over eth0", "rc over mlx5_0", "posix shared memory". Empty before open().
  virtual std::string describe() const = 0;
};

// A tag with all of these bits belongs to the transport, so no SenderNumbers have them. Every
// receive compares these bits. Paths::sender() leaves some out for a block that never reaches them
// all.
constexpr uint64_t kTransportTags = uint64_t{0xfff} << 52;
// This bit marks a part of a message that a transport has divided. Senders leave the bit clear, and
// receives leave it out of their mask. If a received tag has this bit, the receive matched a part
// of a divided message instead of a whole one: the ranks disagree.
constexpr uint64_t kPartTag = uint64_t{1} << 51;

// Memory of a kind, for why_not_direct().
struct MemorySample {
  MemoryKind memory = MemoryKind::host;
  const void* data = nullptr;
  size_t bytes = 0;
};

// Makes links, and receives from all links by tag. Owned by the Transports of an executor. Not
// thread-safe: every call but why_not_direct() comes under the executor's lock.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string name() const = 0;     // "ucx"
  virtual std::string version() const = 0;  // library version and where it was found

  // Empty if the transport carries memory like the sample without staging, else the reason. Asks
  // about an RDMA device such as "mlx5_0", or, without a device, about processes of one host. May
  // take milliseconds, and needs no lock.
  virtual std::string why_not_direct(const MemorySample& sample,
                                     const std::string& rdma_device) const = 0;

  // The kinds of shared memory for links inside a host. Two processes need one in common.
  virtual std::vector<std::string> shared_memory() const { return {}; }

  // The argument of connect() at a peer. Without `same_host` the address has no shared memory.
  virtual std::string address(bool same_host) const = 0;
  // Makes a link that is not open. Throws Error(transport) on an invalid address.
  virtual std::unique_ptr<Link> connect(const std::string& address, int peer_rank) = 0;

  // Posts a receive of the next message whose tag equals `tag` in the bits of `mask`. A longer
  // message than `bytes` completes with Code::invalid_argument. `from`: the link to the only rank
  // that sends such messages, if known. The message then survives the loss of a stripe.
  virtual void recv(uint64_t tag, uint64_t mask, void* data, size_t bytes, MemoryKind memory,
                    Request& request, Link* from) = 0;
  // The tag of the first unexpected message, whole or in part, whose tag equals `tag` in the bits
  // of `mask`. A receive that is posted at once matches this message.
  virtual std::optional<uint64_t> arrived(uint64_t tag, uint64_t mask) const = 0;
  // Cancels a pending receive. It is done with Code::aborted on return, or in a later progress().
  virtual void cancel(Request& request) = 0;
  // A pending receive is done with Code::aborted on return. Nothing may arrive for it any more, as
  // the link that brought a part of its message is closed.
  virtual void abandon(Request& request) { cancel(request); }
  // Drops the unexpected messages with this tag. The link that brought them is closed. Only for
  // transports that stripes are made of.
  virtual void discard(uint64_t /*tag*/) {}

  // Moves all messages and links forward; true if anything happened.
  virtual bool progress() = 0;
  // After prepare_to_sleep() has returned true, event_fd() becomes readable when there is something
  // to progress. After false, progress() comes first.
  virtual int event_fd() const = 0;
  virtual bool prepare_to_sleep() = 0;
};

}  // namespace hetcomm
