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
// The links between two transports have places, in which they are connected: 0, 1, ..., and one
// for each rail. The two ends of a link live and end together, so before they open() it, its owners
// agree on its places by move().
class Link {
 public:
  virtual ~Link() = default;
  virtual std::vector<uint64_t> places() const = 0;
  virtual void move(const std::vector<uint64_t>& places) = 0;  // or the next ones that are free
  // Before the first send, and before the first receive from the peer. Does not wait for it; again
  // is harmless. Throws Error(transport) if nothing leads there.
  virtual void open() = 0;
  // Starts sending; a small message may be complete on return (request.done). `memory` is what
  // `data` points to: nothing is guessed.
  virtual void send(uint64_t tag, const void* data, size_t bytes, MemoryKind memory,
                    Request& request) = 0;
  // The owner has received so much that came over this link. So the other end learns how much of
  // what it sent may still take up memory here, before its receive.
  virtual void take(size_t bytes) = 0;
  // Starts closing, letting sent data drain when `flush` (for which the peer must progress too),
  // otherwise cancelling everything that is in flight, also after a flush was begun. closed(), that
  // nothing is under way any more, turns true within this call or Transport::progress().
  virtual void close(bool flush) = 0;
  virtual bool closed() const = 0;
  // What carries the bytes, for people: "tcp over eth0", "rc over mlx5_0", "posix shared memory".
  // Empty before open().
  virtual std::string describe() const = 0;
};

// Tags with all of these bits are the transports' own. Receives compare these bits.
constexpr uint64_t kTransportTags = uint64_t{0xfff} << 52;

// Some memory of a device, to ask about.
struct MemorySample {
  MemoryKind memory = MemoryKind::host;
  const void* data = nullptr;
  size_t bytes = 0;
};

// Makes links, and receives from all of them by tag. One per executor; not thread-safe: every call
// is made under the executor's lock. Capabilities first:
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string name() const = 0;     // "ucx"
  virtual std::string version() const = 0;  // library version and where it was found

  // Whether it sends and receives memory like the sample by itself, over an RDMA device such as
  // "mlx5_0", or, where that is empty, between processes of one host. Empty if so, else why not.
  // For set-up: it may take milliseconds, and needs no lock.
  virtual std::string why_not_direct(const MemorySample& sample,
                                     const std::string& rdma_device) const = 0;

  // What a peer needs to connect here. A peer on the same host may use shared memory; for the
  // others an address is given that shared memory cannot be reached by.
  virtual std::string address(bool same_host) const = 0;
  // A link in the next place, not opened. Throws Error(transport) on what is no address.
  virtual std::unique_ptr<Link> connect(const std::string& address, int peer_rank) = 0;

  // Receives the next message whose tag equals `tag` in the bits of `mask`. A longer message than
  // `bytes` completes with Code::invalid_argument.
  virtual void recv(uint64_t tag, uint64_t mask, void* data, size_t bytes, MemoryKind memory,
                    Request& request) = 0;
  // The tag of the first message that is here, whole or in part, and that no receive has taken, if
  // one equals `tag` in the bits of `mask`. A receive posted for it at once takes it.
  virtual std::optional<uint64_t> arrived(uint64_t tag, uint64_t mask) const = 0;
  // Gives a pending receive up: done, with Code::aborted, on return or in a later progress().
  virtual void cancel(Request& request) = 0;

  // Moves everything forward; returns true if anything happened.
  virtual bool progress() = 0;
  // For sleeping: after prepare_to_sleep() returned true, `event_fd()` becomes readable when there
  // is something to progress. False: progress again first.
  virtual int event_fd() const = 0;
  virtual bool prepare_to_sleep() = 0;
};

}  // namespace hetcomm
