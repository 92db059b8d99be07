#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"
#include "transport/ucx/library.h"

namespace hetcomm {

// UCX stores this record beside each of its pending requests. It leads to hetcomm's Request.
// Pending requests form a list, so that the destructor of a transport can abandon all of them.
struct PendingRequest {
  Request* request = nullptr;
  size_t capacity = 0;
  PendingRequest* previous = nullptr;
  PendingRequest* next = nullptr;
  bool cancelled = false;  // by the owner of the request
};

// The pending requests of one transport. Not thread-safe.
class PendingRequests {
 public:
  void add(PendingRequest& pending, Request& request, size_t capacity);
  // Null if the transport has abandoned it.
  static Request* remove(PendingRequest& pending);
  // Cancels receives. Pending requests do not touch their Request afterwards.
  void abandon(const UcxLibrary& ucx, ucp_worker_h worker);

 private:
  PendingRequest anchor_{nullptr, 0, &anchor_, &anchor_};
};

// A message from the transport at one end of a link to the transport at the other end.
struct Notice {
  enum Kind : uint64_t { connected, done, consumed, note };
  Kind kind = connected;
  uint64_t transport = 0;
  uint64_t slot = 0;
  uint64_t bytes = 0;  // consumed: the total so far
  Note told = {};      // note: of the link
};

class Endpoint;
class EndpointSlots;

// Shared by the endpoints of one transport, and owned by the transport.
struct UcxWorker {
  const UcxLibrary& ucx;
  const uint64_t id;       // of the transport
  const std::string over;  // " over eth0" for a transport of one interface, else empty
  ucp_worker_h handle = nullptr;
  PendingRequests requests;
  std::vector<std::shared_ptr<Endpoint>> endpoints;  // created in UCX
  bool has_next_step = false;                        // some endpoint needs advance()
  bool chooses_protocol = false;                     // eager or rendezvous, see README.md
};

ucs_memory_type_t ucx_memory_type(MemoryKind memory);

// "what failed: why", as a peer's failure if UCX says so.
Status ucx_failure(const UcxLibrary& ucx, ucs_status_t status, const std::string& what,
                   int peer = -1);

// One UCX endpoint. Shared by its Link and, once created in UCX, by the transport. The transport
// keeps the endpoint until UCX no longer calls back, and detaches the endpoint in its destructor.
// Not thread-safe. README.md explains opening, closing and the choice between eager messages and
// rendezvous.
class Endpoint {
 public:
  Endpoint(UcxWorker& worker, EndpointSlots& slots, uint64_t slot, int peer_rank);

  uint64_t slot() const { return slot_; }
  int peer() const { return peer_; }
  bool is_in(const EndpointSlots& slots, uint64_t slot) const {
    return &slots_ == &slots && slot_ == slot;
  }
  void open();                                        // see Link::open()
  void create(const std::vector<uint64_t>& address);  // in UCX; open() throws its failure
  void send(uint64_t tag, const void* data, size_t bytes, MemoryKind memory, Request& request);
  void consume(size_t bytes);   // see Link::consume()
  void tell(const Note& note);  // see Link::tell()
  void listen(std::function<void(const Note&)> hear) { hear_ = std::move(hear); }
  void close(bool flush);
  // Takes the next steps, if there are any. Not for UCX's callbacks.
  void advance();
  void on_notice(const Notice& notice);  // from the other end
  bool closed() const { return released_ || stage_ == Stage::closed; }
  bool failed() const { return !failure_.ok(); }
  // UCX no longer calls back.
  bool finished() const { return stage_ == Stage::closed && pending_ == 0; }
  // Closes at once, before the worker is destroyed.
  void detach();
  std::string describe() const;

 private:
  struct QueuedSend {
    uint64_t tag;
    const void* data;
    size_t bytes;
    MemoryKind memory;
    Request* request;
  };
  // unopened: not created in UCX. draining: waits until the other end is connected and no send is
  // queued. flushing: sent data drains. parting: waits until the other end is done. closing: UCX
  // destroys the endpoint.
  enum class Stage { unopened, open, draining, flushing, flushed, parting, closing, closed };

  void notify(Notice::Kind kind);
  uint32_t protocol(uint64_t tag, size_t bytes);
  void post_queued();
  void post(uint64_t tag, const void* data, size_t bytes, MemoryKind memory, Request& request);
  void fail_queued();
  Status send_failure() const;  // of a failed or closed endpoint
  void begin_flush();
  void begin_close();
  std::string carriers() const;
  std::string printed_carriers() const;
  static void on_sent(void* posted, ucs_status_t status, void* endpoint);
  static void on_flushed(void* flush, ucs_status_t status, void* endpoint);
  static void on_closed(void* close, ucs_status_t status, void* endpoint);
  static void on_error(void* endpoint, ucp_ep_h handle, ucs_status_t status);

  const UcxLibrary& ucx_;
  UcxWorker& worker_;     // not used once closed
  EndpointSlots& slots_;  // not used once closed
  const uint64_t slot_;
  bool connected_ = false;                     // the other end exists
  bool peer_done_ = false;                     // the other end sends nothing more
  bool released_ = false;                      // by the link
  std::vector<QueuedSend> queued_;             // until connected
  uint64_t sent_ = 0, sent_and_consumed_ = 0;  // bytes of messages to the other end
  uint64_t consumed_ = 0, reported_ = 0;       // bytes of messages from the other end
  Notice notice_;                              // in flight
  Request notice_request_;
  struct Told {
    Notice notice;
    Request request;
  };
  std::list<Told> told_;  // notes in flight
  std::function<void(const Note&)> hear_;
  ucp_ep_h handle_ = nullptr;
  const int peer_;
  const std::string over_;  // see UcxWorker
  int pending_ = 0;         // sends and flushes that UCX will complete
  Stage stage_ = Stage::unopened;
  Status failure_;
  std::string carriers_;  // once closed
};

}  // namespace hetcomm
