#include "transport/ucx/endpoint.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <regex>
#include <vector>

#include "base/events.h"
#include "base/joined.h"
#include "transport/ucx/endpoint_slots.h"

namespace hetcomm {
namespace {

constexpr unsigned kQueryVersion = 114;  // the first whose ucp_ep_query() tells the transports
// The other end may hold so many bytes without a receive, and reports its receives so often. Over
// 1 Gbit/s, both ways at once, 4 messages of 32 MiB at a time and single messages of 128 MiB: with
// 64 MiB 96 and 61 MB/s each way, always eager 124 and 123.
constexpr uint64_t kWindow = 256 << 20;
constexpr uint64_t kReportEvery = kWindow / 8;

std::string carrier(const std::string& transport, const std::string& device) {
  return device == "memory" ? transport + " shared memory" : transport + " over " + device;
}

// Several lanes may have the same carrier.
std::string as_text(const std::vector<std::string>& carriers) {
  std::vector<std::string> distinct;
  for (const std::string& carrier : carriers) {
    const bool known = std::find(distinct.begin(), distinct.end(), carrier) != distinct.end();
    if (!known) distinct.push_back(carrier);
  }
  return joined(distinct, " + ");
}

}  // namespace

void PendingRequests::add(PendingRequest& pending, Request& request, size_t capacity) {
  pending = {&request, capacity, anchor_.previous, &anchor_};
  anchor_.previous->next = &pending;
  anchor_.previous = &pending;
}

Request* PendingRequests::remove(PendingRequest& pending) {
  pending.previous->next = pending.next;
  pending.next->previous = pending.previous;
  return pending.request;
}

void PendingRequests::abandon(const UcxLibrary& ucx, ucp_worker_h worker) {
  for (PendingRequest* pending = anchor_.next; pending != &anchor_; pending = pending->next) {
    pending->request = nullptr;
  }
  for (PendingRequest *pending = anchor_.next, *next; pending != &anchor_; pending = next) {
    next = pending->next;
    ucx.ucp_request_cancel(worker, pending);  // ends a receive; leaves a send alone
  }
}

ucs_memory_type_t ucx_memory_type(MemoryKind memory) {
  switch (memory) {
    case MemoryKind::cuda:
      return UCS_MEMORY_TYPE_CUDA;
    case MemoryKind::rocm:
      return UCS_MEMORY_TYPE_ROCM;
    default:
      return UCS_MEMORY_TYPE_HOST;
  }
}

Status ucx_failure(const UcxLibrary& ucx, ucs_status_t status, const std::string& what,
                   int peer) try {
  std::string text = what + ": " + ucx.ucs_status_string(status);
  switch (status) {
    case UCS_ERR_CANCELED:  // by UCX, because the link has ended
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_NOT_CONNECTED:
      // UCX opens sockets to choose a protocol for long messages. Without one the link ends.
      require_descriptors(1, text);
      return Status(Code::peer_failed, text + "; the peer has closed, died or become unreachable",
                    -1, peer);
    default:
      return Status(Code::transport, text, -1, peer);
  }
} catch (const std::exception& error) {  // UCX's callbacks must not throw
  return status_of(error);
}

Endpoint::Endpoint(UcxWorker& worker, EndpointSlots& slots, uint64_t slot, int peer_rank)
    : ucx_(worker.ucx),
      worker_(worker),
      slots_(slots),
      slot_(slot),
      peer_(peer_rank),
      over_(worker.over) {}

void Endpoint::open() {
  if (stage_ == Stage::unopened) slots_.create_up_to(slot_);
  if (handle_ != nullptr) return;
  throw Error(failure_.ok() ? Status(Code::aborted, "open of a closed link", -1, peer_) : failure_);
}

void Endpoint::create(const std::vector<uint64_t>& address) {
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(address.data());
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler = {&Endpoint::on_error, this};
  const ucs_status_t status = ucx_.ucp_ep_create(worker_.handle, &parameters, &handle_);
  stage_ = Stage::open;
  worker_.has_next_step = true;
  if (status == UCS_OK) return notify(Notice::connected);
  stage_ = Stage::closed;
  handle_ = nullptr;
  failure_ = Status(Code::transport,
                    "cannot connect" + over_ +
                        ": expected a peer that a network interface here leads to; got " +
                        ucx_.ucs_status_string(status) +
                        "; check HETCOMM_SOCKET_IFNAME, UCX_TLS and UCX_NET_DEVICES on both sides",
                    -1, peer_);
}

// A tagged message: for an active message, UCX would create an endpoint back by itself.
void Endpoint::notify(Notice::Kind kind) {
  notice_ = {kind, worker_.id, slot_, consumed_};
  reported_ = consumed_;
  post(kTransportTags, &notice_, sizeof notice_, MemoryKind::host, notice_request_);
}

void Endpoint::on_notice(const Notice& notice) {
  if (notice.kind == Notice::consumed) {
    sent_and_consumed_ = std::max(sent_and_consumed_, notice.bytes);
    return;
  }
  if (notice.kind == Notice::note) {
    if (hear_) hear_(notice.told);
    return;
  }
  (notice.kind == Notice::connected ? connected_ : peer_done_) = true;
  worker_.has_next_step = true;
}

void Endpoint::consume(size_t bytes) {
  consumed_ += bytes;
  if (stage_ == Stage::open && consumed_ - reported_ >= kReportEvery) worker_.has_next_step = true;
}

// Like any message, because the other end may not be connected yet.
void Endpoint::tell(const Note& note) {
  std::erase_if(told_, [](const Told& told) { return told.request.done; });
  Told& told = told_.emplace_back(
      Told{{.kind = Notice::note, .transport = worker_.id, .slot = slot_, .told = note}, {}});
  send(kTransportTags, &told.notice, sizeof told.notice, MemoryKind::host, told.request);
}

// UCX's flag for a message, see settings.cc. Nobody consumes a notice.
uint32_t Endpoint::protocol(uint64_t tag, size_t bytes) {
  if (tag == kTransportTags) return 0;
  sent_ += bytes;
  const bool eager = !worker_.chooses_protocol || sent_ <= sent_and_consumed_ + kWindow;
  return eager ? 0 : UCP_OP_ATTR_FLAG_FAST_CMPL;
}

void Endpoint::send(uint64_t tag, const void* data, size_t bytes, MemoryKind memory,
                    Request& request) {
  request = Request();
  if (!failure_.ok() || stage_ != Stage::open) {
    request.status = send_failure();
  } else if (connected_ && queued_.empty()) {
    post(tag, data, bytes, memory, request);
  } else {
    queued_.push_back({tag, data, bytes, memory, &request});
    request.done = false;
  }
}

void Endpoint::post_queued() {
  for (const QueuedSend& queued : queued_) {
    queued.request->done = true;
    post(queued.tag, queued.data, queued.bytes, queued.memory, *queued.request);
  }
  queued_.clear();
}

Status Endpoint::send_failure() const {
  return failure_.ok() ? Status(Code::aborted, "send: the link was closed here", -1, peer_)
                       : failure_;
}

void Endpoint::fail_queued() {
  for (const QueuedSend& queued : queued_) {
    queued.request->status = send_failure();
    queued.request->done = true;
  }
  queued_.clear();
}

void Endpoint::post(uint64_t tag, const void* data, size_t bytes, MemoryKind memory,
                    Request& request) {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                            UCP_OP_ATTR_FIELD_MEMORY_TYPE | protocol(tag, bytes);
  parameters.cb.send = &Endpoint::on_sent;
  parameters.memory_type = ucx_memory_type(memory);
  parameters.user_data = this;
  void* posted = ucx_.ucp_tag_send_nbx(handle_, data, bytes, tag, &parameters);
  if (UCS_PTR_IS_ERR(posted)) {
    request.status = ucx_failure(ucx_, UCS_PTR_STATUS(posted), "send" + over_, peer_);
  } else if (posted != nullptr) {
    request.done = false;
    request.handle = posted;
    ++pending_;
    worker_.requests.add(*static_cast<PendingRequest*>(posted), request, bytes);
  }
}

void Endpoint::on_sent(void* posted, ucs_status_t status, void* endpoint) {
  auto* self = static_cast<Endpoint*>(endpoint);
  --self->pending_;
  if (self->stage_ > Stage::open) self->worker_.has_next_step = true;
  if (Request* request = PendingRequests::remove(*static_cast<PendingRequest*>(posted))) {
    if (status != UCS_OK) {
      const bool closed_here = status == UCS_ERR_CANCELED && self->stage_ > Stage::open;
      request->status = closed_here || !self->failure_.ok()
                            ? self->send_failure()
                            : ucx_failure(self->ucx_, status, "send" + self->over_, self->peer_);
    }
    request->handle = nullptr;
    request->done = true;
    if (request == &self->notice_request_) self->worker_.has_next_step = true;
  }
  self->ucx_.ucp_request_free(posted);
}

void Endpoint::on_error(void* endpoint, ucp_ep_h, ucs_status_t status) {
  auto* self = static_cast<Endpoint*>(endpoint);
  self->worker_.has_next_step = true;
  std::string what = "link" + self->over_;
  if (!self->connected_) {
    what += " (the peer's host may have dropped the packets: see HETCOMM_UCX_SOURCES in its log)";
  }
  self->failure_ = ucx_failure(self->ucx_, status, what, self->peer_);
}

void Endpoint::close(bool flush) {
  if (stage_ == Stage::unopened) stage_ = Stage::closed;
  if (released_ || stage_ == Stage::closing || stage_ == Stage::closed) return;
  worker_.has_next_step = true;
  if (stage_ == Stage::open) stage_ = Stage::draining;
  if (flush && failure_.ok()) return advance();
  fail_queued();
  // An endpoint that closes while it connects would shift UCX's matching of later endpoints. So it
  // stays until connected, unless sends of its owner are pending.
  const bool sends = pending_ > (notice_request_.done ? 0 : 1);
  released_ = failure_.ok() && !sends && !(connected_ && notice_request_.done);
  if (!released_) begin_close();
}

void Endpoint::begin_flush() {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.cb.send = &Endpoint::on_flushed;
  parameters.user_data = this;
  void* pending = ucx_.ucp_ep_flush_nbx(handle_, &parameters);
  stage_ = UCS_PTR_IS_PTR(pending) ? Stage::flushing : Stage::flushed;
  if (stage_ == Stage::flushing) ++pending_;
}

void Endpoint::on_flushed(void* flush, ucs_status_t, void* endpoint) {
  auto* self = static_cast<Endpoint*>(endpoint);
  self->worker_.has_next_step = true;
  --self->pending_;
  if (self->stage_ == Stage::flushing) self->stage_ = Stage::flushed;
  self->ucx_.ucp_request_free(flush);
}

void Endpoint::advance() {
  if (stage_ == Stage::unopened || stage_ == Stage::closing || stage_ == Stage::closed) return;
  if (!failure_.ok()) {
    fail_queued();
    if (stage_ != Stage::open) begin_close();
    return;
  }
  if (connected_) post_queued();
  if (stage_ == Stage::open && notice_request_.done && consumed_ - reported_ >= kReportEvery)
    notify(Notice::consumed);
  if (stage_ == Stage::draining && connected_) begin_flush();
  if (stage_ == Stage::flushed && pending_ == 0) {  // a long send is flushed before it is received
    notify(Notice::done);
    stage_ = Stage::parting;
    released_ = true;
  }
  if (stage_ == Stage::parting && pending_ == 0 && peer_done_) begin_close();
}

void Endpoint::begin_close() {
  carriers_ = carriers();
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;  // otherwise UCX keeps the sockets for ever
  parameters.cb.send = &Endpoint::on_closed;
  parameters.user_data = this;
  stage_ = Stage::closing;
  void* pending = ucx_.ucp_ep_close_nbx(handle_, &parameters);
  if (!UCS_PTR_IS_PTR(pending)) stage_ = Stage::closed;
}

void Endpoint::on_closed(void* close, ucs_status_t, void* endpoint) {
  auto* self = static_cast<Endpoint*>(endpoint);
  self->stage_ = Stage::closed;
  self->worker_.has_next_step = true;
  self->ucx_.ucp_request_free(close);
}

void Endpoint::detach() {
  queued_.clear();
  const bool made = stage_ != Stage::unopened;
  if (made && stage_ != Stage::closing && stage_ != Stage::closed) begin_close();
  stage_ = Stage::closed;
}

std::string Endpoint::describe() const {
  return handle_ && carriers_.empty() ? carriers() : carriers_;
}

std::string Endpoint::carriers() const {
  ucp_transport_entry_t entries[16]{};
  ucp_ep_attr_t attributes{};
  attributes.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS;
  attributes.transports.entries = entries;
  attributes.transports.num_entries = std::size(entries);
  attributes.transports.entry_size = sizeof entries[0];
  if (ucx_.major_minor < kQueryVersion) return printed_carriers();
  if (ucx_.ucp_ep_query(handle_, &attributes) != UCS_OK) return "unknown";
  std::vector<std::string> names;
  for (unsigned i = 0; i < attributes.transports.num_entries; ++i) {
    names.push_back(carrier(entries[i].transport_name, entries[i].device_name));
  }
  return as_text(names);
}

// For older versions, from their text for people: "lane[0]:  3:rc_verbs/rxe0:1.0 md[1] -> ...".
std::string Endpoint::printed_carriers() const {
  char* text = nullptr;
  size_t bytes = 0;
  FILE* stream = open_memstream(&text, &bytes);
  if (stream == nullptr) return "unknown";
  ucx_.ucp_ep_print_info(handle_, stream);
  fclose(stream);
  std::string printed(text, bytes);
  free(text);
  static const std::regex lane(R"(lane\[\d+\]:\s*\d+:([^/\s]+)/(\S+)\.\d+ md)");
  std::vector<std::string> names;
  for (std::sregex_iterator found(printed.begin(), printed.end(), lane), end; found != end; ++found)
    names.push_back(carrier((*found)[1], (*found)[2]));
  return names.empty() ? "unknown" : as_text(names);
}

}  // namespace hetcomm
