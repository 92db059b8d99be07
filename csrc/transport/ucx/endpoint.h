#pragma once

#include <string>

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

// What the endpoints of one transport share. Owned by the transport.
struct UcxWorker {
  const UcxLibrary& ucx;
  const std::string over;  // " over eth0" where it uses one interface, else empty
  ucp_worker_h handle = nullptr;
  Flights flights;
  int closing = 0;  // endpoints that have begun to close and are still listed
};

// What a message is told about its memory.
ucs_memory_type_t ucx_memory_type(MemoryKind memory);

// "what failed: why", as a peer's failure where UCX says so.
Status ucx_failure(const UcxLibrary& ucx, ucs_status_t status, const std::string& what,
                   int peer = -1);

// One UCX endpoint. Shared by its Link and the transport, which keeps it until UCX is through with
// it, and detaches it when the transport itself goes. Not thread-safe.
class Endpoint {
 public:
  Endpoint(UcxWorker& worker, const void* address, int peer_rank);  // throws Error(transport)

  void send(uint64_t tag, const void* data, size_t bytes, MemoryKind memory, Request& request);
  void close(bool flush);
  // The next step of closing, if any. Called outside UCX's callbacks.
  void advance();
  bool closed() const { return stage_ == Stage::closed; }
  // UCX will not call back any more.
  bool finished() const { return closed() && sending_ == 0; }
  // Closes at once; the worker is about to be destroyed.
  void detach();
  std::string describe() const;

 private:
  // flushing: sent data drains. flushed: to be closed. closing: UCX lets go of it.
  enum class Stage { open, flushing, flushed, closing, closed };

  void begin_close(bool force);
  std::string carriers() const;
  std::string printed_carriers() const;
  static void on_sent(void* flight, ucs_status_t status, void* endpoint);
  static void on_flushed(void* flush, ucs_status_t status, void* endpoint);
  static void on_closed(void* close, ucs_status_t status, void* endpoint);
  static void on_error(void* endpoint, ucp_ep_h handle, ucs_status_t status);

  const UcxLibrary& ucx_;
  UcxWorker& worker_;  // not used once closed
  ucp_ep_h handle_ = nullptr;
  const int peer_;
  const std::string over_;  // see UcxWorker
  int sending_ = 0;         // sends that UCX will complete
  Stage stage_ = Stage::open;
  Status failure_;
  std::string carriers_;  // once closed
};

}  // namespace hetcomm
