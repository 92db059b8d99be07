#include "transport/striped/striped.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <numeric>
#include <utility>

#include "base/deadline.h"
#include "base/packing.h"

namespace hetcomm {
namespace {

// What dividing a message must save. Each part more costs both ends calls and looks: messages of 32
// KiB over two links whose rate did not matter took 46 us divided and 18 us whole, on two cores.
// With 1 and 2 Gbit/s that is a message of 38 KB, with two of 10 Gbit/s one of 125 KB.
constexpr int64_t kWorthMicroseconds = 50;
// Parts begin at multiples of a page.
constexpr size_t kAlignment = 4096;
// Every so many turns, or after so long, rails other than the first are looked at for peers that
// connect or leave, and this often in a row after the last message that was divided, because its
// end may still be in UCX.
constexpr uint32_t kIdleTurns = 64, kBusyTurns = 1024;
constexpr auto kIdleTime = std::chrono::milliseconds(100);

using Links = std::vector<std::unique_ptr<Link>>;

// A message that was divided, under way.
struct Divided {
  Request* whole = nullptr;
  std::vector<Request> parts;
  std::vector<size_t> sizes;     // of them
  std::shared_ptr<Links> links;  // of a send; else a receive
  uint64_t tag = 0;              // of the parts of a receive
  bool given_up = false;

  bool done() const {
    return std::all_of(parts.begin(), parts.end(), [](const Request& part) { return part.done; });
  }
};

// What the links of one transport share with it.
struct Shared {
  std::list<Divided> divided;  // whose requests stay where they are
  std::vector<std::weak_ptr<Links>> closing;
  uint32_t busy_turns = kBusyTurns;  // to look at all rails

  Divided& begin(Request& whole, const std::vector<size_t>& sizes) {
    whole = Request();
    whole.done = false;
    busy_turns = kBusyTurns;
    Divided& made = divided.emplace_back();
    made.whole = &whole;
    made.sizes = sizes;
    made.parts.resize(sizes.size());
    return made;
  }
};

class RailsLink : public Link {
 public:
  RailsLink(std::shared_ptr<Shared> shared, Links links, std::vector<int64_t> bandwidths,
            uint64_t mark)
      : shared_(std::move(shared)),
        links_(std::make_shared<Links>(std::move(links))),
        bandwidths_(std::move(bandwidths)),
        mark_(mark) {}
  ~RailsLink() override { close(false); }

  void send(uint64_t tag, const void* data, size_t bytes, MemoryKind memory,
            Request& request) override {
    std::vector<size_t> sizes = divide(bytes, bandwidths_);
    if (sizes.size() == 1) return links_->front()->send(tag, data, bytes, memory, request);
    Divided& divided = shared_->begin(request, sizes);
    divided.links = links_;
    const auto* from = static_cast<const std::byte*>(data);
    for (size_t rail = 0; rail < sizes.size(); from += sizes[rail], ++rail) {
      (*links_)[rail]->send(tag | mark_, from, sizes[rail], memory, divided.parts[rail]);
    }
  }

  void take(size_t bytes) override {
    const std::vector<size_t> sizes = divide(bytes, bandwidths_);
    for (size_t rail = 0; rail < sizes.size(); ++rail) (*links_)[rail]->take(sizes[rail]);
  }
  std::vector<uint64_t> places() const override {
    std::vector<uint64_t> places;
    for (auto& link : *links_) places.push_back(link->places().front());
    return places;
  }
  void move(const std::vector<uint64_t>& places) override {
    for (size_t rail = 0; rail < places.size(); ++rail) (*links_)[rail]->move({places[rail]});
  }
  void open() override {
    for (auto& link : *links_) link->open();
  }
  void close(bool flush) override {
    for (auto& link : *links_) link->close(flush);
    shared_->closing.push_back(links_);
  }
  bool closed() const override {
    return std::all_of(links_->begin(), links_->end(), [](auto& link) { return link->closed(); });
  }
  std::string describe() const override {
    std::string text;
    for (auto& link : *links_) text += (text.empty() ? "" : " + ") + link->describe();
    return links_->front()->describe().empty() ? "" : text;
  }

 private:
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Links> links_;
  std::vector<int64_t> bandwidths_;
  uint64_t mark_;
};

class Rails : public Transport {
 public:
  Rails(std::vector<RailTransport> rails, uint64_t mark) : mark_(mark) {
    events_ = epoll_create1(EPOLL_CLOEXEC);
    for (const RailTransport& rail : rails) {
      transports_.push_back(rail.transport);
      bandwidths_.push_back(rail.bandwidth);
      epoll_event event{};
      event.events = EPOLLIN;
      if (epoll_ctl(events_, EPOLL_CTL_ADD, rail.transport->event_fd(), &event) != 0) {
        const std::string why = std::strerror(errno);
        ::close(events_);
        throw Error(Code::transport, "epoll_ctl: " + why + "; raise the descriptor limit");
      }
    }
  }
  ~Rails() override { ::close(events_); }

  std::string name() const override { return first().name(); }
  std::string version() const override { return first().version(); }
  std::string why_not_direct(const MemorySample& sample,
                             const std::string& rdma_device) const override {
    return first().why_not_direct(sample, rdma_device);
  }
  std::string address(bool same_host) const override {
    std::vector<std::string> addresses;
    for (Transport* transport : transports_) addresses.push_back(transport->address(same_host));
    return rails_address(addresses);
  }
  std::unique_ptr<Link> connect(const std::string& address, int peer_rank) override;
  void recv(uint64_t tag, uint64_t mask, void* data, size_t bytes, MemoryKind memory,
            Request& request) override;
  std::optional<uint64_t> arrived(uint64_t tag, uint64_t mask) const override {
    return first().arrived(tag, mask);  // every message has a part there
  }
  void cancel(Request& request) override;
  bool progress() override;
  int event_fd() const override { return events_; }
  bool prepare_to_sleep() override;

 private:
  Transport& first() const { return *transports_.front(); }
  // Gives up what is under way and cannot end well any more.
  void look_after(Divided& divided);
  void give_up(Divided& divided);
  void complete(const Divided& divided) const;
  bool collect();
  // What a receive got instead may be a whole message: then nothing may come for the other parts.
  bool is_part(const Divided& divided, const Request& part) const {
    return divided.links || (part.tag & mark_) != 0;
  }
  // Or a part of a message of another size or call.
  static bool is_expected(const Divided& divided, size_t part);

  std::vector<Transport*> transports_;
  std::vector<int64_t> bandwidths_;
  const uint64_t mark_;
  int events_ = -1;
  uint32_t turns_ = 0;
  Clock::time_point last_of_all_;  // when all rails were looked at
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

std::unique_ptr<Link> Rails::connect(const std::string& address, int peer_rank) {
  Links links;
  try {
    Unpacker from(address);
    for (Transport* transport : transports_) {
      links.push_back(transport->connect(from.text(), peer_rank));
    }
    from.end();
  } catch (const Error& error) {
    for (auto& link : links) link->close(false);
    if (error.status().code() != Code::invalid_argument) throw;
    throw Error(
        Status(Code::transport, "link address: " + std::string(error.what()), -1, peer_rank));
  }
  return std::make_unique<RailsLink>(shared_, std::move(links), bandwidths_, mark_);
}

void Rails::recv(uint64_t tag, uint64_t mask, void* data, size_t bytes, MemoryKind memory,
                 Request& request) {
  std::vector<size_t> sizes = divide(bytes, bandwidths_);
  if (sizes.size() == 1) return first().recv(tag, mask, data, bytes, memory, request);
  Divided& divided = shared_->begin(request, sizes);
  divided.tag = tag | mark_;
  auto* into = static_cast<std::byte*>(data);
  for (size_t rail = 0; rail < sizes.size(); into += sizes[rail], ++rail) {
    transports_[rail]->recv(divided.tag, mask, into, sizes[rail], memory, divided.parts[rail]);
  }
}

void Rails::cancel(Request& request) {
  for (Divided& divided : shared_->divided) {
    if (divided.whole == &request) return give_up(divided);
  }
  first().cancel(request);
}

bool Rails::is_expected(const Divided& divided, size_t part) {
  const Request& request = divided.parts[part];
  if (!request.status.ok()) return false;
  return divided.links || (request.tag == divided.tag && request.bytes == divided.sizes[part]);
}

void Rails::give_up(Divided& divided) {
  if (std::exchange(divided.given_up, true)) return;
  for (size_t part = 0; part < divided.parts.size(); ++part) {
    if (divided.links) {
      (*divided.links)[part]->close(false);
    } else {
      transports_[part]->cancel(divided.parts[part]);
    }
  }
  if (divided.links) shared_->closing.push_back(divided.links);
}

void Rails::look_after(Divided& divided) {
  for (const Request& part : divided.parts) {
    if (!part.done) continue;
    // Where a part is too long, the others are on their way, and their sender waits for them.
    const bool failed = !part.status.ok() && part.status.code() != Code::invalid_argument;
    if (failed || !is_part(divided, part)) return give_up(divided);
  }
}

void Rails::complete(const Divided& divided) const {
  Request& whole = *divided.whole;
  const Request* cause = nullptr;  // what went wrong, rather than what was given up for it
  for (size_t part = 0; part < divided.parts.size(); ++part) {
    if (is_expected(divided, part)) continue;
    const bool given_up = cause && cause->status.code() == Code::aborted;
    if (cause == nullptr || given_up) cause = &divided.parts[part];
  }
  const size_t bytes = std::accumulate(divided.sizes.begin(), divided.sizes.end(), size_t{0});
  if (cause == nullptr) {
    whole.bytes = bytes;
    whole.tag = divided.tag & ~mark_;
  } else if (!cause->status.ok() && cause->status.code() != Code::invalid_argument) {
    whole.status = cause->status;
  } else if (cause->status.ok() && cause->tag != divided.tag) {
    whole.bytes = cause->bytes;
    whole.tag = cause->tag;
  } else {
    whole.tag = cause->tag & ~mark_;
    whole.status = Status(Code::invalid_argument,
                          "receive: expected a message of " + std::to_string(bytes) +
                              " bytes; got one of another size; both ranks must agree on the size");
  }
  whole.done = true;
}

bool Rails::collect() {
  bool moved = false;
  auto& all = shared_->divided;
  for (auto divided = all.begin(); divided != all.end();) {
    look_after(*divided);
    if (!divided->done()) {
      ++divided;
      continue;
    }
    complete(*divided);
    divided = all.erase(divided);
    moved = true;
  }
  std::erase_if(shared_->closing, [](const std::weak_ptr<Links>& closing) {
    const auto links = closing.lock();
    return !links ||
           std::all_of(links->begin(), links->end(), [](auto& link) { return link->closed(); });
  });
  return moved;
}

bool Rails::progress() {
  uint32_t& busy = shared_->busy_turns;
  if (!shared_->divided.empty() || !shared_->closing.empty()) busy = kBusyTurns;
  const auto now = Clock::now();
  const bool all = busy > 0 || ++turns_ % kIdleTurns == 0 || now - last_of_all_ > kIdleTime;
  if (all) last_of_all_ = now;
  if (busy > 0) --busy;
  bool moved = first().progress();
  for (size_t rail = 1; all && rail < transports_.size(); ++rail) {
    if (!transports_[rail]->progress()) continue;
    moved = true;
    busy = std::max(busy, 1U);  // there may be more
  }
  if (!shared_->divided.empty() || !shared_->closing.empty()) moved |= collect();
  return moved;
}

bool Rails::prepare_to_sleep() {
  bool ready = true;
  for (Transport* transport : transports_) ready &= transport->prepare_to_sleep();
  if (!ready) shared_->busy_turns = std::max(shared_->busy_turns, 1U);  // see what there is
  return ready;
}

}  // namespace

std::vector<size_t> divide(size_t bytes, const std::vector<int64_t>& bandwidths) {
  __extension__ using Wide = __int128;
  const Wide sum = std::accumulate(bandwidths.begin(), bandwidths.end(), Wide{0});
  const Wide rest = sum - bandwidths[0];
  // Saved are bytes / first - bytes / sum seconds.
  const bool pays =
      rest > 0 && Wide(bytes) * rest * 1'000'000 >= Wide(kWorthMicroseconds) * bandwidths[0] * sum;
  if (!pays || bytes < bandwidths.size() * kAlignment) return {bytes};
  std::vector<size_t> sizes;
  size_t begin = 0;
  Wide before = 0;
  for (int64_t bandwidth : bandwidths) {
    before += bandwidth;
    size_t end = static_cast<size_t>(Wide(bytes) * before / sum) / kAlignment * kAlignment;
    if (before == sum) end = bytes;
    sizes.push_back(end - begin);
    begin = end;
  }
  return sizes;
}

std::unique_ptr<Transport> make_rails(std::vector<RailTransport> rails, uint64_t mark) {
  return std::make_unique<Rails>(std::move(rails), mark);
}

std::string rails_address(const std::vector<std::string>& addresses) {
  Packer packer;
  for (const std::string& address : addresses) packer.put(address);
  return packer.take();
}

}  // namespace hetcomm
