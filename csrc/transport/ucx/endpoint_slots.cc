#include "transport/ucx/endpoint_slots.h"

#include <algorithm>
#include <string>

#include "base/log.h"

namespace hetcomm {
namespace {

constexpr int kMostClosed = 16;

}  // namespace

std::shared_ptr<Endpoint> EndpointSlots::add(int peer_rank) {
  auto closed = [](const auto& unopened) {
    const auto endpoint = unopened.second.lock();
    return endpoint == nullptr || endpoint->closed();
  };
  // Reuses slots, because each slot costs an endpoint. Not at once, because the other end may still
  // use them.
  if (std::count_if(unopened_.begin(), unopened_.end(), closed) > kMostClosed) {
    std::erase_if(unopened_, closed);
  }
  return add(peer_rank, unopened_.empty() ? created_ : unopened_.rbegin()->first + 1);
}

std::shared_ptr<Endpoint> EndpointSlots::add(int peer_rank, uint64_t slot) {
  slot = std::max(slot, created_);
  while (unopened_.contains(slot)) ++slot;
  auto endpoint = std::make_shared<Endpoint>(worker_, *this, slot, peer_rank);
  unopened_[slot] = endpoint;
  handed_out_ = std::max(handed_out_, slot + 1);
  return endpoint;
}

std::shared_ptr<Endpoint> EndpointSlots::move(std::shared_ptr<Endpoint> endpoint, uint64_t slot) {
  if (endpoint->slot() == slot) return endpoint;
  endpoint->close(false);
  return add(endpoint->peer(), slot);
}

void EndpointSlots::create_up_to(uint64_t slot) {
  for (; created_ <= slot; ++created_) {
    const auto found = unopened_.extract(created_);
    auto endpoint = found ? found.mapped().lock() : nullptr;
    const bool closed = endpoint == nullptr || endpoint->closed();
    if (closed) endpoint = std::make_shared<Endpoint>(worker_, *this, created_, -1);
    worker_.endpoints.push_back(endpoint);
    endpoint->create(address_);
    if (closed) endpoint->close(false);
  }
}

void EndpointSlots::on_notice(const Notice& notice) {
  if (notice.slot >= handed_out_) {
    log(LogLevel::warning, "a peer's message names link " + std::to_string(notice.slot) +
                               "; expected one of " + std::to_string(handed_out_) +
                               "; run the same hetcomm version on every rank");
    return;
  }
  create_up_to(notice.slot);
  for (const auto& endpoint : worker_.endpoints) {
    if (endpoint->is_in(*this, notice.slot)) endpoint->on_notice(notice);
  }
}

void EndpointSlots::detach() {
  for (auto& [slot, unopened] : unopened_) {
    if (const auto endpoint = unopened.lock()) endpoint->detach();
  }
}

}  // namespace hetcomm
