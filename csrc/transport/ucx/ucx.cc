#include "transport/ucx/ucx.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/deadline.h"
#include "base/events.h"
#include "base/fnv.h"
#include "base/fork.h"
#include "base/joined.h"
#include "base/log.h"
#include "base/packing.h"
#include "base/start_thread.h"
#include "transport/ucx/endpoint_slots.h"
#include "transport/ucx/library.h"
#include "transport/ucx/listeners.h"
#include "transport/ucx/memory_domains.h"
#include "transport/ucx/settings.h"

namespace hetcomm {
namespace {

// Comes before UCX's own address, because UCX trusts any bytes. The sources of connections come in
// between.
struct AddressHeader {
  char magic[8] = {'h', 'e', 't', 'c', '.', 'u', 'c', 'x'};
  uint64_t transport = 0;
  uint32_t library_version = 0;
  uint32_t source_bytes = 0;
  uint64_t bytes = 0;  // of UCX's address
  uint64_t checksum = 0;
};

// UCX takes 12 at least. With 6 or 11 left, UCX 1.22 ends the process.
constexpr int kDescriptors = 16;

uint64_t random_id() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

class UcxLink : public Link {
 public:
  UcxLink(EndpointSlots& slots, UcxListeners& listeners, int peer_rank)
      : slots_(slots), listeners_(listeners), endpoint_(slots.add(peer_rank)) {}
  ~UcxLink() override { endpoint_->close(false); }

  void send(uint64_t tag, const void* data, size_t bytes, MemoryKind memory,
            Request& request) override {
    endpoint_->send(tag, data, bytes, memory, request);
  }
  // The peer opens its end once it has the offer.
  std::string offer() const override {
    listeners_.apply();
    return Packer().put(endpoint_->slot()).take();
  }
  void counter(const std::string& theirs, uint64_t spread) override {
    const uint64_t slot = Unpacker(theirs).number();
    endpoint_ = slots_.move(endpoint_, std::max(endpoint_->slot(), slot) + spread);
    endpoint_->listen(hear_);
  }
  void open() override { endpoint_->open(); }
  void consume(size_t bytes) override { endpoint_->consume(bytes); }
  void tell(const Note& note) override { endpoint_->tell(note); }
  void listen(std::function<void(const Note&)> hear) override {
    hear_ = hear;
    endpoint_->listen(std::move(hear));
  }
  void close(bool flush) override { endpoint_->close(flush); }
  bool closed() const override { return endpoint_->closed(); }
  bool failed() const override { return endpoint_->failed(); }
  std::string describe() const override { return endpoint_->describe(); }

 private:
  EndpointSlots& slots_;
  UcxListeners& listeners_;
  std::shared_ptr<Endpoint> endpoint_;
  std::function<void(const Note&)> hear_;
};

class UcxTransport : public Transport {
 public:
  UcxTransport(const std::vector<std::string>& interfaces, Carriers carriers);
  ~UcxTransport() override;

  std::string name() const override { return "ucx"; }
  std::string version() const override { return ucx_version(); }
  std::string why_not_direct(const MemorySample& sample,
                             const std::string& rdma_device) const override {
    return hetcomm::why_not_direct(ucx_, context_, sample, rdma_device);
  }
  std::vector<std::string> shared_memory() const override { return memory_.kinds(); }
  std::string address(bool same_host) const override;
  std::unique_ptr<Link> connect(const std::string& address, int peer_rank) override;
  void recv(uint64_t tag, uint64_t mask, void* data, size_t bytes, MemoryKind memory,
            Request& request, Link* from) override;
  std::optional<uint64_t> arrived(uint64_t tag, uint64_t mask) const override;
  void cancel(Request& request) override;
  void abandon(Request& request) override;
  void discard(uint64_t tag) override;
  bool progress() override;
  int event_fd() const override { return event_fd_; }
  bool prepare_to_sleep() override;

 private:
  ucs_status_t create_worker(const std::vector<std::string>& interfaces, Carriers carriers);
  static void on_received(void* posted, ucs_status_t status, const ucp_tag_recv_info_t* info,
                          void* transport);
  void complete(const PendingRequest& pending, ucs_status_t status,
                const ucp_tag_recv_info_t& info) const;

  void listen() {
    recv(kTransportTags, ~uint64_t{0}, &notice_, sizeof notice_, MemoryKind::host, listening_,
         nullptr);
  }
  void handle_notices();
  void advance();
  std::string worker_address(uint32_t flags) const;

  const UcxLibrary& ucx_;
  UcxListeners listeners_;
  SharedMemory memory_;
  ucp_context_h context_ = nullptr;
  UcxWorker worker_;
  int event_fd_ = -1;
  const PendingRequest* immediate_ = nullptr;  // the receive that is being posted
  std::map<uint64_t, EndpointSlots> slots_;    // by id of the other transport
  Notice notice_;                              // received next
  Request listening_;
  struct EarlyNotice {
    Notice notice;
    Clock::time_point at = Clock::now();
  };
  std::deque<EarlyNotice> early_;  // from transports without a link from here
  bool warned_of_early_ = false;
  std::list<std::vector<char>> discarded_;  // memory of messages whose rest never comes
};

// Bounds of notices from transports without a link from here. Links are made before any is opened,
// so set-up failed here and not there. The newest notices stay, in case a link follows.
constexpr size_t kMostEarly = 1024;
constexpr auto kEarlyBound = std::chrono::minutes(10);
constexpr int kMostNotices = 64;  // of each call of progress()

// Throws Error(vendor).
void require(const UcxLibrary& ucx, ucs_status_t status, const char* function) {
  if (status == UCS_OK) return;
  throw Error(Code::vendor, std::string(function) + " of UCX " + ucx.version +
                                ": expected success; got " + ucx.ucs_status_string(status) +
                                "; check UCX_* variables and HETCOMM_LOG_LEVEL=debug");
}

// UCX has one thread in a process. A child of fork() lacks this thread and shares its poll set with
// the parent. Throws Error(transport).
const UcxLibrary& ucx_library_of_process() {
  static const ProcessMark first_use;
  if (!first_use.inherited()) return ucx_library();
  throw Error(Code::transport,
              "UCX: expected a process that has not inherited it in use; got a child by fork() of "
              "one that used hetcomm; start the process by spawn or forkserver, or fork first");
}

UcxTransport::UcxTransport(const std::vector<std::string>& interfaces, Carriers carriers)
    : ucx_(ucx_library_of_process()),
      worker_{ucx_, random_id(), interfaces.size() == 1 ? " over " + interfaces[0] : ""} {
  require_descriptors(kDescriptors, "UCX");
  start_thread("ucx", [] {}).join();  // UCX ends the process where it cannot start its thread
  if (carriers == Carriers::all || carriers == Carriers::all_but_tcp) {
    memory_ = SharedMemory::probe();
  }
  ucs_status_t status = create_worker(interfaces, carriers);
  // Other processes may take the rest of shared memory at any time.
  while ((status == UCS_ERR_NO_RESOURCE || status == UCS_ERR_NO_MEMORY) && !memory_.works.empty() &&
         !environment_variable("UCX_TLS")) {
    memory_.refuse(std::string(memory_.works.front()), "too little is left");
    status = create_worker(interfaces, carriers);
  }
  require(ucx_, status, "ucp_worker_create");
  try {
    listeners_.find(worker_address(0), carriers == Carriers::tcp);
    require(ucx_, ucx_.ucp_worker_get_efd(worker_.handle, &event_fd_), "ucp_worker_get_efd");
    listen();
  } catch (...) {
    ucx_.ucp_worker_destroy(worker_.handle);
    ucx_.ucp_cleanup(context_);
    throw;
  }
}

// Neither a context nor a worker is left after a failure. Throws Error if UCX has no context.
ucs_status_t UcxTransport::create_worker(const std::vector<std::string>& interfaces,
                                         Carriers carriers) {
  ucp_config_t* configuration =
      read_configuration(interfaces, carriers, memory_, ucx_, worker_.chooses_protocol);
  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_REQUEST_SIZE;
  parameters.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  parameters.request_size = sizeof(PendingRequest);
  ucs_status_t status = ucx_.ucp_init_version(1, 12, &parameters, configuration, &context_);
  ucx_.ucp_config_release(configuration);
  require(ucx_, status, "ucp_init");
  ucp_worker_params_t worker_parameters{};
  worker_parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_parameters.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucx_.ucp_worker_create(context_, &worker_parameters, &worker_.handle);
  if (status != UCS_OK) ucx_.ucp_cleanup(context_);
  return status;
}

UcxTransport::~UcxTransport() {
  worker_.requests.abandon(ucx_, worker_.handle);
  for (auto& [id, slots] : slots_) slots.detach();
  for (const auto& endpoint : worker_.endpoints) endpoint->detach();
  // Bounded: UCX drops all that a peer has not confirmed by then.
  for (int i = 0; i < 1000 && ucx_.ucp_worker_progress(worker_.handle) > 0; ++i) {
  }
  ucx_.ucp_worker_destroy(worker_.handle);
  ucx_.ucp_cleanup(context_);
}

std::string UcxTransport::worker_address(uint32_t flags) const {
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS;
  attributes.address_flags = flags;
  require(ucx_, ucx_.ucp_worker_query(worker_.handle, &attributes), "ucp_worker_query");
  std::string address(reinterpret_cast<const char*>(attributes.address), attributes.address_length);
  ucx_.ucp_worker_release_address(worker_.handle, attributes.address);
  return address;
}

std::string UcxTransport::address(bool same_host) const {
  const std::string sources = joined(listeners_.own_sources(), ",");
  const std::string own = worker_address(same_host ? 0 : UCP_WORKER_ADDRESS_FLAG_NET_ONLY);
  AddressHeader header;
  header.transport = worker_.id;
  header.library_version = ucx_.major_minor;
  header.source_bytes = static_cast<uint32_t>(sources.size());
  header.bytes = own.size();
  header.checksum = fnv1a(sources + own, header.transport);
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + sources + own;
}

std::unique_ptr<Link> UcxTransport::connect(const std::string& address, int peer_rank) {
  AddressHeader header;
  const AddressHeader expected;
  if (address.size() > sizeof header) std::memcpy(&header, address.data(), sizeof header);
  const std::string_view rest =
      std::string_view(address).substr(std::min(sizeof header, address.size()));
  if (header.bytes == 0 || rest.size() < header.source_bytes ||
      rest.size() - header.source_bytes != header.bytes ||
      std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0 ||
      fnv1a(rest, header.transport) != header.checksum) {
    throw Error(Status(Code::transport,
                       "link address: expected one from the peer's ucx transport; got " +
                           std::to_string(address.size()) +
                           " bytes that are not; check that all ranks run the same hetcomm",
                       -1, peer_rank));
  }
  if (header.library_version != ucx_.major_minor) {
    log(LogLevel::warning, "rank " + std::to_string(peer_rank) + " uses UCX " +
                               std::to_string(header.library_version / 100) + "." +
                               std::to_string(header.library_version % 100) + ", this rank " +
                               ucx_.version + "; use one version everywhere if links fail");
  }
  // A copy, aligned as UCX expects it.
  std::vector<uint64_t> aligned((header.bytes + 7) / 8);
  std::memcpy(aligned.data(), rest.data() + header.source_bytes, header.bytes);
  listeners_.admit(rest.substr(0, header.source_bytes));
  EndpointSlots& slots =
      slots_.try_emplace(header.transport, worker_, std::move(aligned)).first->second;
  auto link = std::make_unique<UcxLink>(slots, listeners_, peer_rank);
  handle_notices();
  return link;
}

void UcxTransport::recv(uint64_t tag, uint64_t mask, void* data, size_t bytes, MemoryKind memory,
                        Request& request, Link* /*from*/) {
  request = Request();
  request.done = false;
  ucp_request_param_t parameters{};
  // Before 1.16, UCX tells the tag and size of a received message to the callback only.
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                            UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  parameters.cb.recv = &UcxTransport::on_received;
  parameters.memory_type = ucx_memory_type(memory);
  parameters.user_data = this;
  PendingRequest immediate{&request, bytes};
  immediate_ = &immediate;
  void* posted = ucx_.ucp_tag_recv_nbx(worker_.handle, data, bytes, tag, mask, &parameters);
  immediate_ = nullptr;
  if (UCS_PTR_IS_ERR(posted)) {
    complete(immediate, UCS_PTR_STATUS(posted), {});
  } else if (request.done) {
    ucx_.ucp_request_free(posted);
  } else {
    request.handle = posted;
    worker_.requests.add(*static_cast<PendingRequest*>(posted), request, bytes);
  }
}

void UcxTransport::complete(const PendingRequest& pending, ucs_status_t status,
                            const ucp_tag_recv_info_t& info) const {
  Request& request = *pending.request;
  if (status == UCS_OK) {
    request.bytes = info.length;
    request.tag = info.sender_tag;
  } else if (status == UCS_ERR_MESSAGE_TRUNCATED) {
    request.tag = info.sender_tag;
    request.status =
        Status(Code::invalid_argument,
               "receive: expected a message of at most " + std::to_string(pending.capacity) +
                   " bytes; got a longer one" +
                   (info.length > pending.capacity ? " of " + std::to_string(info.length) + " bytes"
                                                   : "") +
                   "; both ranks must agree on the size");
  } else if (status == UCS_ERR_CANCELED && pending.cancelled) {
    request.status = Status(Code::aborted, "receive: cancelled here");
  } else {
    request.status = ucx_failure(ucx_, status, "receive");
  }
  request.handle = nullptr;
  request.done = true;
}

void UcxTransport::on_received(void* posted, ucs_status_t status, const ucp_tag_recv_info_t* info,
                               void* transport) {
  auto* self = static_cast<UcxTransport*>(transport);
  if (self->immediate_ != nullptr) return self->complete(*self->immediate_, status, *info);
  auto& ended = *static_cast<PendingRequest*>(posted);
  if (PendingRequests::remove(ended) != nullptr) self->complete(ended, status, *info);
  self->ucx_.ucp_request_free(posted);
}

std::optional<uint64_t> UcxTransport::arrived(uint64_t tag, uint64_t mask) const {
  ucp_tag_recv_info_t info;
  if (ucx_.ucp_tag_probe_nb(worker_.handle, tag, mask, 0, &info) == nullptr) return std::nullopt;
  return info.sender_tag;
}

void UcxTransport::cancel(Request& request) {
  if (request.done) return;
  static_cast<PendingRequest*>(request.handle)->cancelled = true;
  ucx_.ucp_request_cancel(worker_.handle, request.handle);
}

void UcxTransport::abandon(Request& request) {
  if (request.done) return;
  cancel(request);
  if (request.done) return;
  static_cast<PendingRequest*>(request.handle)->request = nullptr;
  request.handle = nullptr;
  request.status = Status(Code::aborted, "receive: abandoned here");
  request.done = true;
}

void UcxTransport::discard(uint64_t tag) {
  ucp_tag_recv_info_t info;
  while (ucp_tag_message_h message =
             ucx_.ucp_tag_probe_nb(worker_.handle, tag, ~uint64_t{0}, 1, &info)) {
    std::vector<char>& memory = discarded_.emplace_back(info.length);
    const ucp_request_param_t parameters{};
    void* posted = ucx_.ucp_tag_msg_recv_nbx(worker_.handle, memory.data(), memory.size(), message,
                                             &parameters);
    const bool pending =
        UCS_PTR_IS_PTR(posted) && ucx_.ucp_request_check_status(posted) == UCS_INPROGRESS;
    if (UCS_PTR_IS_PTR(posted)) ucx_.ucp_request_free(posted);
    if (!pending) discarded_.pop_back();
  }
}

bool UcxTransport::progress() {
  bool moved = ucx_.ucp_worker_progress(worker_.handle) > 0;
  for (int i = 0; i < kMostNotices && listening_.done; ++i) handle_notices();
  if (worker_.has_next_step) advance();
  listeners_.apply();
  listeners_.look();
  return moved;
}

void UcxTransport::handle_notices() {
  if (listening_.done) {
    if (!listening_.status.ok()) {
      log(LogLevel::warning, "a peer's message about a link was lost: " + listening_.status.text());
    } else if (listening_.bytes == sizeof notice_) {
      early_.push_back({notice_});
    }
    listen();
  }
  std::erase_if(early_, [this](const EarlyNotice& early) {
    const auto slots = slots_.find(early.notice.transport);
    if (slots == slots_.end()) return false;
    slots->second.on_notice(early.notice);
    return true;
  });
  const auto oldest = Clock::now() - kEarlyBound;
  while (!early_.empty() && (early_.size() > kMostEarly || early_.front().at < oldest)) {
    if (early_.size() > kMostEarly && !std::exchange(warned_of_early_, true)) {
      log(LogLevel::warning,
          "peers have opened more than " + std::to_string(kMostEarly) +
              " links that this rank does not know of; the oldest are forgotten; "
              "see why set-up failed here");
    }
    early_.pop_front();
  }
}

void UcxTransport::advance() {
  worker_.has_next_step = false;
  for (const auto& endpoint : worker_.endpoints) endpoint->advance();
  std::erase_if(worker_.endpoints, [](const auto& endpoint) { return endpoint->finished(); });
}

bool UcxTransport::prepare_to_sleep() {
  if (worker_.has_next_step || listening_.done) return false;
  ucs_status_t status = ucx_.ucp_worker_arm(worker_.handle);
  if (status != UCS_OK && status != UCS_ERR_BUSY) {
    log(LogLevel::error, std::string("cannot sleep on UCX: ") + ucx_.ucs_status_string(status));
  }
  return status == UCS_OK;
}

}  // namespace

std::unique_ptr<Transport> make_ucx_transport(const std::vector<std::string>& interfaces,
                                              Carriers carriers) {
  return std::make_unique<UcxTransport>(interfaces, carriers);
}

std::string ucx_version() {
  try {
    const UcxLibrary& ucx = ucx_library();
    return ucx.version + " (" + ucx.path + ")";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace hetcomm
