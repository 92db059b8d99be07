#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "transport/ucx/endpoint.h"

namespace hetcomm {

// The endpoints to one other transport. UCX matches endpoints between two workers by creation
// order, so every link has a slot, and both ends create endpoints in the order of slots. A slot
// without a link gets an endpoint that closes once connected. See README.md. Owned by the
// transport.
class EndpointSlots {
 public:
  EndpointSlots(UcxWorker& worker, std::vector<uint64_t> address)
      : worker_(worker), address_(std::move(address)) {}

  // An endpoint in the slot after the last one in use.
  std::shared_ptr<Endpoint> add(int peer_rank);
  // An endpoint of the same link in `slot`, or in the next free one after it.
  std::shared_ptr<Endpoint> move(std::shared_ptr<Endpoint> endpoint, uint64_t slot);
  void create_up_to(uint64_t slot);
  // A notice from the other end of a slot. Creates the endpoint if there is none yet.
  void on_notice(const Notice& notice);
  // Comes before the worker is destroyed.
  void detach();

 private:
  std::shared_ptr<Endpoint> add(int peer_rank, uint64_t slot);

  UcxWorker& worker_;
  const std::vector<uint64_t> address_;
  std::map<uint64_t, std::weak_ptr<Endpoint>> unopened_;  // by slot
  uint64_t created_ = 0;                                  // slots below have an endpoint in UCX
  uint64_t handed_out_ = 0;                               // slots below have had a link
};

}  // namespace hetcomm
