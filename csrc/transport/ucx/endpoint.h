#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"
#include "transport/ucx/library.h"

namespace hetcomm {

// What UCX keeps for us beside each of its pending requests: the way back to hetcomm's Request.
// Pending flights form a list, so that a transport which goes away can let go of all of them.
struct Flight {
  Request* request = nullptr;
  size_t capacity = 0;
  Flight* previous = nullptr;
  Flight* next = nullptr;
  bool cancelled = false;  // by the owner of the request
};

// The pending flights of one transport. Not thread-safe.
class Flights {
 public:
  void add(Flight& flight, Request& request, size_t capacity);
  // Unlinks; null if the transport has forgotten it.
  static Request* land(Flight& flight);
  // Whatever is pending will never touch its Request again; what can be cancelled is.
  void abandon(const UcxLibrary& ucx, ucp_worker_h worker);

 private:
  Flight anchor_{nullptr, 0, &anchor_, &anchor_};
};

// What an endpoint tells the other end of itself.
struct Notice {
  enum Kind : uint64_t { here, through, taken };
  Kind kind = here;
  uint64_t transport = 0;
  uint64_t place = 0;
  uint64_t bytes = 0;  // taken: so many in all
};

class Endpoint;
class Remote;

// What the endpoints of one transport share. Owned by the transport.
struct UcxWorker {
  const UcxLibrary& ucx;
  const uint64_t id;       // of the transport
  const std::string over;  // " over eth0" where it uses one interface, else empty
  ucp_worker_h handle = nullptr;
  Flights flights;
  std::vector<std::shared_ptr<Endpoint>> endpoints;  // that UCX has
  bool advances = false;                             // one of them has a next step
  bool chooses = false;  // between eager messages and rendezvous, see Endpoint
};

// What a message is told about its memory.
ucs_memory_type_t ucx_memory_type(MemoryKind memory);

// "what failed: why", as a peer's failure where UCX says so.
Status ucx_failure(const UcxLibrary& ucx, ucs_status_t status, const std::string& what,
                   int peer = -1);

// One UCX endpoint. Shared by its Link and, once made, the transport, which keeps it until UCX is
// through with it, and detaches it when the transport itself goes. Not thread-safe.
//
// It tells the other end that it is there, see Remote, and holds sends back until it has been told
// the same: UCX would otherwise answer to a long message by an endpoint of its own, out of order.
// When it is closed in peace, it tells that it is through, and goes when the other end is as well:
// until then UCX may need it for what that one sends.
//
// Over TCP a message is eager while the other end has not taken less than a window of what was sent
// before: a rendezvous costs a round trip, whose answer queues behind the data of the other
// direction. Beyond the window a message waits at this end for its receive, so the memory of the
// other end for messages that come before theirs is bounded.
class Endpoint {
 public:
  Endpoint(UcxWorker& worker, Remote& remote, uint64_t place, int peer_rank);

  uint64_t place() const { return place_; }
  int peer() const { return peer_; }
  bool is_at(const Remote& remote, uint64_t place) const {
    return &remote_ == &remote && place_ == place;
  }
  void open();                                      // see Link::open()
  void make(const std::vector<uint64_t>& address);  // what is wrong with it, open() says
  void send(uint64_t tag, const void* data, size_t bytes, MemoryKind memory, Request& request);
  void take(size_t bytes);  // see Link::take()
  void close(bool flush);
  // The next steps, if any. Called outside UCX's callbacks.
  void advance();
  void hear(const Notice& notice);  // from the other end
  bool closed() const { return left_ || stage_ == Stage::closed; }
  // UCX will not call back any more.
  bool finished() const { return stage_ == Stage::closed && pending_ == 0; }
  // Closes at once; the worker is about to be destroyed.
  void detach();
  std::string describe() const;

 private:
  struct Held {
    uint64_t tag;
    const void* data;
    size_t bytes;
    MemoryKind memory;
    Request* request;
  };
  // waiting: UCX does not have it yet. draining: until the other end is there, and nothing is held
  // back. flushing: sent data drains. parting: until the other end is through. closing: UCX lets go
  // of it.
  enum class Stage { waiting, open, draining, flushing, flushed, parting, closing, closed };

  void tell(Notice::Kind kind);
  uint32_t protocol(size_t bytes);
  void release();
  void post(uint64_t tag, const void* data, size_t bytes, MemoryKind memory, Request& request);
  void drop_held();
  Status why_not_sent() const;  // once it has failed or is being closed
  void begin_flush();
  void begin_close();
  std::string carriers() const;
  std::string printed_carriers() const;
  static void on_sent(void* flight, ucs_status_t status, void* endpoint);
  static void on_flushed(void* flush, ucs_status_t status, void* endpoint);
  static void on_closed(void* close, ucs_status_t status, void* endpoint);
  static void on_error(void* endpoint, ucp_ep_h handle, ucs_status_t status);

  const UcxLibrary& ucx_;
  UcxWorker& worker_;  // not used once closed
  Remote& remote_;     // likewise
  const uint64_t place_;
  bool met_ = false;      // the other end is here
  bool through_ = false;  // the other end
  bool left_ = false;     // the owner is through with it
  std::vector<Held> held_;
  uint64_t sent_ = 0, sent_and_taken_ = 0;  // bytes of messages to the other end
  uint64_t taken_ = 0, told_ = 0;           // of messages from there
  Notice notice_;                           // that is told
  Request telling_;
  ucp_ep_h handle_ = nullptr;
  const int peer_;
  const std::string over_;  // see UcxWorker
  int pending_ = 0;         // sends and flushes of which UCX will tell the end
  Stage stage_ = Stage::waiting;
  Status failure_;
  std::string carriers_;  // once closed
};

}  // namespace hetcomm
