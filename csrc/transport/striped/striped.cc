#include "transport/striped/striped.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"
#include "base/events.h"
#include "base/packing.h"
#include "transport/striped/receives.h"
#include "transport/striped/stripe_links.h"

namespace hetcomm {
namespace {

// Idle stripes beyond the first are polled every so many turns, or after this time, because peers
// may connect or leave. After a divided message all stripes are polled so many times in a row,
// because the end of the message may still be in flight.
constexpr uint32_t kPollEvery = 64, kPollsAfterTraffic = 1024;
constexpr auto kPollInterval = std::chrono::milliseconds(100);

// Shared by a transport and its links.
struct Shared {
  StripeReceives receives;
  std::vector<std::weak_ptr<StripeLinks>> links;
  std::vector<std::shared_ptr<StripeLinks>> active;  // links with something to do
  Layout firsts = {0};                               // the first stripes of all links
  uint32_t polls_due = kPollsAfterTraffic;           // of all stripes
  bool changed = false;                              // receives may have ended without progress

  void activate(const std::shared_ptr<StripeLinks>& links) {
    polls_due = kPollsAfterTraffic;
    changed = true;
    if (std::find(active.begin(), active.end(), links) == active.end()) active.push_back(links);
    const size_t first = links->first();
    if (std::find(firsts.begin(), firsts.end(), first) == firsts.end()) firsts.push_back(first);
  }
  bool busy() const { return receives.divided() || !active.empty(); }
};

class StripedLink : public Link {
 public:
  StripedLink(std::shared_ptr<Shared> shared, std::vector<std::unique_ptr<Link>> links,
              const std::vector<int64_t>& bandwidths)
      : shared_(std::move(shared)),
        links_(std::make_shared<StripeLinks>(std::move(links), bandwidths)) {
    std::weak_ptr<Shared> all = shared_;
    std::weak_ptr<StripeLinks> mine = links_;
    for (const auto& link : links_->all()) {
      link->listen([all, mine](const Note& note) {
        const auto transport = all.lock();
        const auto heard = mine.lock();
        if (!transport || !heard) return;
        heard->hear(note);
        if (heard->busy()) transport->activate(heard);
      });
    }
    std::erase_if(shared_->links, [](const auto& links) { return links.expired(); });
    shared_->links.push_back(links_);
  }
  ~StripedLink() override { close(false); }

  const std::shared_ptr<StripeLinks>& links() const { return links_; }

  void send(uint64_t tag, const void* data, size_t bytes, MemoryKind memory,
            Request& request) override {
    links_->send(tag, data, bytes, memory, request);
    if (links_->busy()) shared_->activate(links_);
  }
  void consume(size_t bytes) override { links_->consume(bytes); }
  std::string offer() const override {
    Packer packer;
    for (auto& link : links_->all()) packer.put(link->offer());
    return packer.take();
  }
  void counter(const std::string& theirs, uint64_t spread) override {
    Unpacker from(theirs);
    for (auto& link : links_->all()) link->counter(from.text(), spread);
  }
  void open() override;
  void lose(size_t stripe) override {
    links_->lose({stripe});
    shared_->activate(links_);
  }
  std::vector<size_t> lost_stripes() const override { return links_->lost_stripes(); }
  void close(bool flush) override {
    links_->close(flush);
    shared_->activate(links_);
  }
  bool closed() const override { return links_->closed(); }
  std::string describe() const override {
    std::string text;
    for (size_t stripe = 0; stripe < links_->all().size(); ++stripe) {
      if (links_->lost(stripe)) continue;
      text += (text.empty() ? "" : " + ") + links_->all()[stripe]->describe();
    }
    return links_->all()[links_->first()]->describe().empty() ? "" : text;
  }

 private:
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<StripeLinks> links_;
};

// The link does without stripes that do not open, unless none opens.
void StripedLink::open() {
  Layout failed;
  for (size_t stripe = 0; stripe < links_->all().size(); ++stripe) {
    if (links_->lost(stripe)) continue;
    try {
      links_->all()[stripe]->open();
    } catch (const Error&) {
      failed.push_back(stripe);
      if (lost_stripes().size() + failed.size() == links_->all().size()) throw;
    }
  }
  if (!failed.empty()) links_->lose(failed);
  links_->open();
  if (links_->busy()) shared_->activate(links_);
}

class Striped : public Transport {
 public:
  Striped(std::vector<Transport*> transports, std::vector<int64_t> bandwidths)
      : transports_(std::move(transports)),
        bandwidths_(std::move(bandwidths)),
        shared_(std::make_shared<Shared>(
            Shared{.receives = StripeReceives(transports_, bandwidths_)})) {
    for (Transport* transport : transports_) add_to_epoll(events_, transport->event_fd());
  }

  std::string name() const override { return "striped"; }
  std::string version() const override { return transports_.front()->version(); }
  std::string why_not_direct(const MemorySample& sample,
                             const std::string& rdma_device) const override {
    return transports_.front()->why_not_direct(sample, rdma_device);
  }
  std::string address(bool same_host) const override {
    std::vector<std::string> addresses;
    for (Transport* transport : transports_) addresses.push_back(transport->address(same_host));
    return pack_addresses(addresses);
  }
  std::unique_ptr<Link> connect(const std::string& address, int peer_rank) override;
  void recv(uint64_t tag, uint64_t mask, void* data, size_t bytes, MemoryKind memory,
            Request& request, Link* from) override {
    shared_->receives.post(tag, mask, data, bytes, memory, request,
                           from ? static_cast<StripedLink*>(from)->links() : nullptr);
    if (shared_->receives.divided()) shared_->polls_due = kPollsAfterTraffic;
  }
  std::optional<uint64_t> arrived(uint64_t tag, uint64_t mask) const override;
  void cancel(Request& request) override {
    shared_->receives.cancel(request);
    shared_->changed = true;
  }
  bool progress() override;
  int event_fd() const override { return events_; }
  bool prepare_to_sleep() override;

 private:
  bool progress_links(Clock::time_point now);
  void lose_failed();

  std::vector<Transport*> transports_;
  std::vector<int64_t> bandwidths_;
  const Descriptor events_ = make_epoll();
  uint32_t turns_ = 0;
  Clock::time_point last_full_poll_;  // of all stripes
  std::shared_ptr<Shared> shared_;
};

std::unique_ptr<Link> Striped::connect(const std::string& address, int peer_rank) {
  std::vector<std::unique_ptr<Link>> made;
  try {
    Unpacker from(address);
    for (Transport* transport : transports_) {
      made.push_back(transport->connect(from.text(), peer_rank));
    }
    from.end();
  } catch (const Error& error) {
    for (auto& link : made) link->close(false);
    if (error.status().code() != Code::invalid_argument) throw;
    throw Error(
        Status(Code::transport, "link address: " + std::string(error.what()), -1, peer_rank));
  }
  return std::make_unique<StripedLink>(shared_, std::move(made), bandwidths_);
}

// Every message has a part on the first stripe of its link. What a lost stripe brought is gone, and
// the peer has announced it.
std::optional<uint64_t> Striped::arrived(uint64_t tag, uint64_t mask) const {
  for (size_t stripe : shared_->firsts) {
    if (const auto found = transports_[stripe]->arrived(tag, mask)) return found;
  }
  if (shared_->firsts.size() == 1) return std::nullopt;
  for (const auto& one : shared_->links) {
    const auto links = one.lock();
    if (!links) continue;
    for (const auto& owed : links->owed()) {
      if (owed.matches(tag, mask)) return owed.tag;
    }
  }
  return std::nullopt;
}

bool Striped::progress_links(Clock::time_point now) {
  bool moved = false;
  auto& active = shared_->active;
  for (size_t i = 0; i < active.size(); ++i) {
    const std::shared_ptr<StripeLinks> links = active[i];
    moved |= links->progress(now);
    if (!links->agreement_due()) continue;
    shared_->receives.collect();  // what has come is not to come again
    shared_->receives.agree(links);
    moved = true;
  }
  std::erase_if(active, [](const auto& links) { return !links->busy(); });
  return moved;
}

// A receiver, too, notices that a connection has failed.
void Striped::lose_failed() {
  for (const auto& one : shared_->links) {
    const auto links = one.lock();
    if (links && links->lose_failed()) shared_->activate(links);
  }
}

bool Striped::progress() {
  uint32_t& busy = shared_->polls_due;
  if (shared_->busy()) busy = kPollsAfterTraffic;
  const auto now = Clock::now();
  const bool regular = ++turns_ % kPollEvery == 0 || now - last_full_poll_ > kPollInterval;
  const bool all = busy > 0 || regular;
  if (busy > 0) --busy;
  bool moved = false;
  const Layout& firsts = shared_->firsts;  // notes may add to them
  for (size_t i = 0; i < firsts.size(); ++i) moved |= transports_[firsts[i]]->progress();
  for (size_t stripe = 1; all && stripe < transports_.size(); ++stripe) {
    if (!transports_[stripe]->progress()) continue;
    moved = true;
    busy = std::max(busy, 1U);  // more may follow
  }
  if (all) last_full_poll_ = now;
  if (regular && !shared_->receives.empty()) lose_failed();
  // Another striped transport of this process may poll the same NIC, so receives end without a
  // move.
  const bool idle = !shared_->busy() && !std::exchange(shared_->changed, false);
  if (!moved && idle && shared_->receives.empty()) return false;
  moved |= progress_links(now);
  return shared_->receives.collect() || moved;
}

bool Striped::prepare_to_sleep() {
  bool ready = true;
  for (Transport* transport : transports_) ready &= transport->prepare_to_sleep();
  if (!ready) shared_->polls_due = std::max(shared_->polls_due, 1U);  // poll all stripes next
  return ready;
}

}  // namespace

std::unique_ptr<Transport> make_striped_transport(std::vector<StripeTransport> stripes) {
  std::vector<Transport*> transports;
  std::vector<int64_t> bandwidths;
  for (const StripeTransport& stripe : stripes) {
    transports.push_back(stripe.transport);
    bandwidths.push_back(stripe.bandwidth);
  }
  return std::make_unique<Striped>(std::move(transports), std::move(bandwidths));
}

}  // namespace hetcomm
