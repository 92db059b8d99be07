#include "transport/ucx/endpoint_slots.h"

#include <algorithm>
#include <string>

#include "base/log.h"

namespace hetcomm {
namespace {

constexpr int kMostGone = 16;

}  // namespace

std::shared_ptr<Endpoint> Remote::add(int peer_rank) {
  auto gone = [](const auto& waiting) {
    const auto endpoint = waiting.second.lock();
    return endpoint == nullptr || endpoint->closed();
  };
  // Else each would have to be filled. Not at once: the other end may not know yet that they are.
  if (std::count_if(waiting_.begin(), waiting_.end(), gone) > kMostGone) {
    std::erase_if(waiting_, gone);
  }
  return add(peer_rank, waiting_.empty() ? made_ : waiting_.rbegin()->first + 1);
}

std::shared_ptr<Endpoint> Remote::add(int peer_rank, uint64_t place) {
  place = std::max(place, made_);
  while (waiting_.contains(place)) ++place;
  auto endpoint = std::make_shared<Endpoint>(worker_, *this, place, peer_rank);
  waiting_[place] = endpoint;
  given_ = std::max(given_, place + 1);
  return endpoint;
}

std::shared_ptr<Endpoint> Remote::move(std::shared_ptr<Endpoint> endpoint, uint64_t place) {
  if (endpoint->place() == place) return endpoint;
  endpoint->close(false);
  return add(endpoint->peer(), place);
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
  if (notice.place >= given_) {
    log(LogLevel::warning, "a peer speaks of link " + std::to_string(notice.place) +
                               " where this rank knows of " + std::to_string(given_) +
                               "; run the same hetcomm version on every rank");
    return;
  }
  make_up_to(notice.place);
  for (const auto& endpoint : worker_.endpoints) {
    if (endpoint->is_at(*this, notice.place)) endpoint->hear(notice);
  }
}

void Remote::detach() {
  for (auto& [place, waiting] : waiting_) {
    if (const auto endpoint = waiting.lock()) endpoint->detach();
  }
}

}  // namespace hetcomm
