#include "transport/ucx/endpoint.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <regex>
#include <vector>

#include "transport/ucx/endpoint_slots.h"

namespace hetcomm {
namespace {

constexpr unsigned kQueryVersion = 114;  // whose ucp_ep_query() first tells the transports
// How much the other end may hold of messages that it has not received yet, and after how much it
// tells that it has. Both ways at once over 1 Gbit/s, 4 messages of 32 MiB at a time, and single
// ones of 128 MiB: with 64 MiB 96 and 61 MB/s each way, always eager 124 and 123.
constexpr uint64_t kWindow = 256 << 20;
constexpr uint64_t kTold = kWindow / 8;

std::string carrier(const std::string& transport, const std::string& device) {
  return device == "memory" ? transport + " shared memory" : transport + " over " + device;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (auto name = names.begin(); name != names.end(); ++name) {
    if (std::find(names.begin(), name, *name) == name) text += (text.empty() ? "" : " + ") + *name;
  }
  return text;
}

}  // namespace

void Flights::add(Flight& flight, Request& request, size_t capacity) {
  flight = {&request, capacity, anchor_.previous, &anchor_};
  anchor_.previous->next = &flight;
  anchor_.previous = &flight;
}

Request* Flights::land(Flight& flight) {
  flight.previous->next = flight.next;
  flight.next->previous = flight.previous;
  return flight.request;
}

void Flights::abandon(const UcxLibrary& ucx, ucp_worker_h worker) {
  for (Flight* flight = anchor_.next; flight != &anchor_; flight = flight->next) {
    flight->request = nullptr;
  }
  for (Flight *flight = anchor_.next, *next; flight != &anchor_; flight = next) {
    next = flight->next;
    ucx.ucp_request_cancel(worker, flight);  // lands a receive; leaves a send alone
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
      return Status(Code::peer_failed, text + "; the peer has closed, died or become unreachable",
                    -1, peer);
    default:
      return Status(Code::transport, text, -1, peer);
  }
} catch (const std::exception& error) {  // mostly called by UCX's callbacks
  return status_of(error);
}

Endpoint::Endpoint(UcxWorker& worker, Remote& remote, uint64_t place, int peer_rank)
    : ucx_(worker.ucx),
      worker_(worker),
      remote_(remote),
      place_(place),
      peer_(peer_rank),
      over_(worker.over) {}

void Endpoint::open() {
  if (stage_ == Stage::waiting) remote_.make_up_to(place_);
  if (handle_ != nullptr) return;
  throw Error(failure_.ok() ? Status(Code::aborted, "open of a closed link", -1, peer_) : failure_);
}

void Endpoint::make(const std::vector<uint64_t>& address) {
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(address.data());
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler = {&Endpoint::on_error, this};
  const ucs_status_t status = ucx_.ucp_ep_create(worker_.handle, &parameters, &handle_);
  stage_ = Stage::open;
  worker_.advances = true;
  if (status == UCS_OK) return tell(Notice::here);
  stage_ = Stage::closed;
  handle_ = nullptr;
  failure_ = Status(Code::transport,
                    "cannot connect" + over_ +
                        ": expected a peer that a network interface here leads to; got " +
                        ucx_.ucs_status_string(status) +
                        "; check HETCOMM_SOCKET_IFNAME, UCX_TLS and UCX_NET_DEVICES on both sides",
                    -1, peer_);
}

// As a message with a tag: with an active one, UCX would look for the other end by itself.
void Endpoint::tell(Notice::Kind kind) {
  notice_ = {kind, worker_.id, place_, taken_};
  told_ = taken_;
  post(kTransportTags, &notice_, sizeof notice_, MemoryKind::host, telling_);
}

void Endpoint::hear(const Notice& notice) {
  if (notice.kind == Notice::taken) {
    sent_and_taken_ = std::max(sent_and_taken_, notice.bytes);
    return;
  }
  (notice.kind == Notice::here ? met_ : through_) = true;
  worker_.advances = true;
}

void Endpoint::take(size_t bytes) {
  taken_ += bytes;
  if (stage_ == Stage::open && taken_ - told_ >= kTold) worker_.advances = true;
}

// UCX's flag for a message: see settings.cc.
uint32_t Endpoint::protocol(size_t bytes) {
  sent_ += bytes;
  const bool eager = !worker_.chooses || sent_ - sent_and_taken_ <= kWindow;
  return eager ? 0 : UCP_OP_ATTR_FLAG_FAST_CMPL;
}

void Endpoint::send(uint64_t tag, const void* data, size_t bytes, MemoryKind memory,
                    Request& request) {
  request = Request();
  if (!failure_.ok() || stage_ != Stage::open) {
    request.status = why_not_sent();
  } else if (met_ && held_.empty()) {
    post(tag, data, bytes, memory, request);
  } else {
    held_.push_back({tag, data, bytes, memory, &request});
    request.done = false;
  }
}

void Endpoint::release() {
  for (const Held& held : held_) {
    held.request->done = true;
    post(held.tag, held.data, held.bytes, held.memory, *held.request);
  }
  held_.clear();
}

Status Endpoint::why_not_sent() const {
  return failure_.ok() ? Status(Code::aborted, "send: the link was closed here", -1, peer_)
                       : failure_;
}

void Endpoint::drop_held() {
  for (const Held& held : held_) {
    held.request->status = why_not_sent();
    held.request->done = true;
  }
  held_.clear();
}

void Endpoint::post(uint64_t tag, const void* data, size_t bytes, MemoryKind memory,
                    Request& request) {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  if (&request != &telling_) parameters.op_attr_mask |= protocol(bytes);
  parameters.cb.send = &Endpoint::on_sent;
  parameters.memory_type = ucx_memory_type(memory);
  parameters.user_data = this;
  void* flight = ucx_.ucp_tag_send_nbx(handle_, data, bytes, tag, &parameters);
  if (UCS_PTR_IS_ERR(flight)) {
    request.status = ucx_failure(ucx_, UCS_PTR_STATUS(flight), "send" + over_, peer_);
  } else if (flight != nullptr) {
    request.done = false;
    request.handle = flight;
    ++pending_;
    worker_.flights.add(*static_cast<Flight*>(flight), request, bytes);
  }
}

void Endpoint::on_sent(void* flight, ucs_status_t status, void* endpoint) {
  auto* self = static_cast<Endpoint*>(endpoint);
  --self->pending_;
  if (self->stage_ > Stage::open) self->worker_.advances = true;
  if (Request* request = Flights::land(*static_cast<Flight*>(flight))) {
    if (status != UCS_OK) {
      const bool closed_here = status == UCS_ERR_CANCELED && self->stage_ > Stage::open;
      request->status = closed_here || !self->failure_.ok()
                            ? self->why_not_sent()
                            : ucx_failure(self->ucx_, status, "send" + self->over_, self->peer_);
    }
    request->handle = nullptr;
    request->done = true;
    if (request == &self->telling_) self->worker_.advances = true;
  }
  self->ucx_.ucp_request_free(flight);
}

void Endpoint::on_error(void* endpoint, ucp_ep_h, ucs_status_t status) {
  auto* self = static_cast<Endpoint*>(endpoint);
  self->worker_.advances = true;
  self->failure_ = ucx_failure(self->ucx_, status, "link" + self->over_, self->peer_);
}

void Endpoint::close(bool flush) {
  if (stage_ == Stage::waiting) stage_ = Stage::closed;
  if (left_ || stage_ == Stage::closing || stage_ == Stage::closed) return;
  worker_.advances = true;
  if (stage_ == Stage::open) stage_ = Stage::draining;
  if (flush && failure_.ok()) return advance();
  drop_held();
  // While they connect, UCX would take the other end for that of the next one. Nothing of the owner
  // may be under way then.
  const bool sends = pending_ > (telling_.done ? 0 : 1);
  left_ = failure_.ok() && !sends && !(met_ && telling_.done);
  if (!left_) begin_close();
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
  self->worker_.advances = true;
  --self->pending_;
  if (self->stage_ == Stage::flushing) self->stage_ = Stage::flushed;
  self->ucx_.ucp_request_free(flush);
}

void Endpoint::advance() {
  if (stage_ == Stage::waiting || stage_ == Stage::closing || stage_ == Stage::closed) return;
  if (!failure_.ok()) {
    drop_held();
    if (stage_ != Stage::open) begin_close();
    return;
  }
  if (met_) release();
  if (stage_ == Stage::open && telling_.done && taken_ - told_ >= kTold) tell(Notice::taken);
  if (stage_ == Stage::draining && met_) begin_flush();
  if (stage_ == Stage::flushed && pending_ == 0) {  // a long send is flushed before it is received
    tell(Notice::through);
    stage_ = Stage::parting;
    left_ = true;
  }
  if (stage_ == Stage::parting && pending_ == 0 && through_) begin_close();
}

void Endpoint::begin_close() {
  carriers_ = carriers();
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;  // else UCX keeps it, and its sockets, for ever
  parameters.cb.send = &Endpoint::on_closed;
  parameters.user_data = this;
  stage_ = Stage::closing;
  void* pending = ucx_.ucp_ep_close_nbx(handle_, &parameters);
  if (!UCS_PTR_IS_PTR(pending)) stage_ = Stage::closed;
}

void Endpoint::on_closed(void* close, ucs_status_t, void* endpoint) {
  auto* self = static_cast<Endpoint*>(endpoint);
  self->stage_ = Stage::closed;
  self->worker_.advances = true;
  self->ucx_.ucp_request_free(close);
}

void Endpoint::detach() {
  held_.clear();
  const bool made = stage_ != Stage::waiting;
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
  return joined(names);
}

// The same from what older versions print for people: "lane[0]:  3:rc_verbs/rxe0:1.0 md[1] -> ...".
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
  return names.empty() ? "unknown" : joined(names);
}

}  // namespace hetcomm
