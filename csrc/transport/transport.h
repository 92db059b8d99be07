#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/memory_kind.h"
#include "base/status.h"

namespace hetcomm {

// One message in flight. Owned by the caller, who keeps it and the memory it refers to alive and
// unmoved until done. Completed only inside Transport::progress() or the call that posted it.
struct Request {
  bool done = true;
  Status status;
  size_t bytes = 0;        // received bytes
  uint64_t tag = 0;        // received tag
  void* handle = nullptr;  // the transport's own
};

// A point-to-point channel to one peer. Owned by one communicator. Messages with matching tags
// arrive in the order in which they were sent. Not thread-safe: use under the transport's lock.
//
// Both ends of a link are made, opened and closed together. Before open() the owners of the two
// ends exchange offer() and, while the offers differ, both counter() the offer of the other end.
class Link {
 public:
  virtual ~Link() = default;
  // Names this end to the other; empty where the transport needs no agreement.
  virtual std::string offer() const { return {}; }
  // Replaces the offer by a later one than both. Links that were countered at the same time and
  // took each other's offer get different values of `spread`.
  virtual void counter(const std::string& /*theirs*/, uint64_t /*spread*/) {}
  // Called before the first send, and before the first receive from the peer. Does not wait for the
  // peer; a second call is harmless. Throws Error(transport) if the peer cannot be reached.
  virtual void open() = 0;
  // Starts sending; a small message may be complete on return (request.done). `memory` is what
  // `data` points to.
  virtual void send(uint64_t tag, const void* data, size_t bytes, MemoryKind memory,
                    Request& request) = 0;
  // The owner has received a message of so many bytes from this peer. Transports bound the memory
  // of messages without a receive by it.
  virtual void take(size_t /*bytes*/) {}
  // Starts closing. With `flush`, sent data drains, for which the peer must progress too. Otherwise
  // everything in flight is cancelled, also after an earlier flush. closed() turns true within this
  // call or Transport::progress(), once nothing is in flight.
  virtual void close(bool flush) = 0;
  virtual bool closed() const = 0;
  // For people: "tcp over eth0", "rc over mlx5_0", "posix shared memory". Empty before open().
  virtual std::string describe() const = 0;
};

// Tags with all of these bits belong to transports. Every receive compares these bits.
constexpr uint64_t kTransportTags = uint64_t{0xfff} << 52;
// Senders leave this bit clear, and receives leave it out of their mask: it marks a part of a
// message that a transport has divided. A received tag with this bit belongs to another message
// than expected.
constexpr uint64_t kPartTag = uint64_t{1} << 51;

// Memory of a kind, for why_not_direct().
struct MemorySample {
  MemoryKind memory = MemoryKind::host;
  const void* data = nullptr;
  size_t bytes = 0;
};

// Makes links, and receives from all of them by tag. Owned by the Transports of an executor. Not
// thread-safe: every call is made under the executor's lock. Capabilities first:
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string name() const = 0;     // "ucx"
  virtual std::string version() const = 0;  // library version and where it was found

  // Empty if it sends and receives memory like the sample without staging, else why not: over an
  // RDMA device such as "mlx5_0", or, without a device, between processes of one host. May take
  // milliseconds, and needs no lock.
  virtual std::string why_not_direct(const MemorySample& sample,
                                     const std::string& rdma_device) const = 0;

  // The argument of connect() at a peer. The address for a peer on another host has no shared
  // memory.
  virtual std::string address(bool same_host) const = 0;
  // A link, not opened. Throws Error(transport) on an invalid address.
  virtual std::unique_ptr<Link> connect(const std::string& address, int peer_rank) = 0;

  // Receives the next message whose tag equals `tag` in the bits of `mask`. A longer message than
  // `bytes` completes with Code::invalid_argument.
  virtual void recv(uint64_t tag, uint64_t mask, void* data, size_t bytes, MemoryKind memory,
                    Request& request) = 0;
  // The tag of the first unexpected message, whole or in part, that equals `tag` in the bits of
  // `mask`. A receive posted at once matches this message.
  virtual std::optional<uint64_t> arrived(uint64_t tag, uint64_t mask) const = 0;
  // Cancels a pending receive: done, with Code::aborted, on return or in a later progress().
  virtual void cancel(Request& request) = 0;

  // Moves everything forward; returns true if anything happened.
  virtual bool progress() = 0;
  // After prepare_to_sleep() returned true, `event_fd()` becomes readable when there is something
  // to progress. False: progress again first.
  virtual int event_fd() const = 0;
  virtual bool prepare_to_sleep() = 0;
};

}  // namespace hetcomm
