#include "exec/paths.h"

namespace hetcomm {

Paths::Paths(int rank, std::vector<PeerAddress> peers, std::unique_ptr<Island> island,
             std::shared_ptr<Device> device, Status no_transport)
    : rank_(rank),
      peers_(std::move(peers)),
      streams_(device ? std::make_unique<Streams>(std::move(device)) : nullptr),
      island_(std::move(island)),
      no_transport_(std::move(no_transport)),
      links_(peers_.size()) {
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    const PeerAddress& to = peers_[peer];
    if (static_cast<int>(peer) == rank_ || !to.transport || to.link_address.empty()) continue;
    links_[peer] = to.transport->connect(to.link_address, static_cast<int>(peer));
  }
}

std::vector<std::vector<uint64_t>> Paths::places() const {
  std::vector<std::vector<uint64_t>> places;
  for (const auto& link : links_) {
    places.push_back(link ? link->places() : std::vector<uint64_t>());
  }
  return places;
}

Link* Paths::link(int peer, Status& status) {
  if (peers_[peer].transport == nullptr) {
    status = no_transport_;
    return nullptr;
  }
  if (peers_[peer].link_address.empty()) {
    status = Status(Code::transport,
                    "rank " + std::to_string(peer) +
                        " has no UCX: its log says why; install libucx-cu13 there or set "
                        "HETCOMM_UCX_LIBRARY",
                    rank_, peer);
    return nullptr;
  }
  try {
    opened_ = true;
    links_[peer]->open();
  } catch (const Error& error) {
    status = error.status();
    return nullptr;
  }
  return links_[peer].get();
}

int Paths::sender(uint64_t body) const {
  const uint64_t wanted = tag(peers_[rank_].communicator, 0, body);
  const uint64_t mask = ~(compared(true) | tag(0, kMaxRanks - 1, 0));
  const Transport* asked = nullptr;
  for (const PeerAddress& peer : peers_) {
    if (peer.transport == nullptr || peer.transport == asked) continue;
    asked = peer.transport;
    if (const auto found = asked->arrived(wanted, mask)) return sender_of(*found);
  }
  return -1;
}

bool Paths::arrived(int from, uint64_t body) const {
  const Transport* transport = peers_[from].transport;
  return transport && transport->arrived(recv_tag(from, body), ~compared(true));
}

std::string Paths::describe(int peer) const {
  const std::string carriers = links_[peer] ? links_[peer]->describe() : "";
  return carriers.empty() ? "not connected yet" : carriers;
}

void Paths::close(bool flush) {
  for (auto& link : links_) {
    if (link) link->close(flush);
  }
}

bool Paths::closed() const {
  for (const auto& link : links_) {
    if (link && !link->closed()) return false;
  }
  return true;
}

}  // namespace hetcomm
