#include "transport/ucx/remote.h"

#include <algorithm>

namespace hetcomm {

std::shared_ptr<Endpoint> Remote::add(int peer_rank, uint64_t place) {
  place = std::max(place, made_);
  while (waiting_.contains(place)) ++place;
  auto endpoint = std::make_shared<Endpoint>(worker_, *this, place, peer_rank);
  waiting_[place] = endpoint;
  next_ = std::max(next_, place + 1);
  return endpoint;
}

std::shared_ptr<Endpoint> Remote::move(std::shared_ptr<Endpoint> endpoint, uint64_t place) {
  if (endpoint->place_ == place) return endpoint;
  endpoint->close(false);
  return add(endpoint->peer_, place);
}

void Remote::make_up_to(uint64_t place) {
  for (; made_ <= place; ++made_) {
    const auto found = waiting_.extract(made_);
    auto endpoint = found ? found.mapped().lock() : nullptr;
    const bool gone = endpoint == nullptr || endpoint->closed();
    if (gone) endpoint = std::make_shared<Endpoint>(worker_, *this, made_, -1);
    worker_.endpoints.push_back(endpoint);
    endpoint->make(address_);
    if (gone) endpoint->close(false);
  }
}

void Remote::hear(const Notice& notice) {
  make_up_to(notice.place);
  for (const auto& endpoint : worker_.endpoints) {
    if (&endpoint->remote_ == this && endpoint->place_ == notice.place) endpoint->hear(notice.kind);
  }
}

void Remote::detach() {
  for (auto& [place, waiting] : waiting_) {
    if (const auto endpoint = waiting.lock()) endpoint->detach();
  }
}

}  // namespace hetcomm
