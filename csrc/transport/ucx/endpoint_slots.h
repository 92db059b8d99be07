#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "transport/ucx/endpoint.h"

namespace hetcomm {

// Another transport, and the endpoints here for it. UCX pairs the n-th that one worker makes for
// another with the n-th of that one for it, and so does its TCP with connections: what either side
// does to its own, or not any more, reaches the other. So both make them in the order of their
// places, and both make them: one tells the other. A place whose link has gone is filled with an
// endpoint that is closed as soon as the other end is there. Owned by the transport.
class Remote {
 public:
  Remote(UcxWorker& worker, std::vector<uint64_t> address)
      : worker_(worker), address_(std::move(address)) {}

  // An endpoint in the place after all that are in use.
  std::shared_ptr<Endpoint> add(int peer_rank);
  // The same in another place, or in the next one that is free; that may be another endpoint.
  std::shared_ptr<Endpoint> move(std::shared_ptr<Endpoint> endpoint, uint64_t place);
  void make_up_to(uint64_t place);
  // From the other end of one of them; if it was not made, it is.
  void hear(const Notice& notice);
  // The worker is about to be destroyed.
  void detach();

 private:
  std::shared_ptr<Endpoint> add(int peer_rank, uint64_t place);

  UcxWorker& worker_;
  const std::vector<uint64_t> address_;
  std::map<uint64_t, std::weak_ptr<Endpoint>> waiting_;  // by place
  uint64_t made_ = 0;                                    // the first place not made
  uint64_t given_ = 0;                                   // after all that anyone ever had
};

}  // namespace hetcomm
