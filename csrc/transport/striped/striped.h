#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace hetcomm {

// One NIC of several: a transport that uses it alone.
struct RailTransport {
  Transport* transport = nullptr;
  int64_t bandwidth = 0;  // bytes per second
};

// The bytes of a message that each rail carries, in this order: in proportion to the bandwidths, or
// all on the first, where dividing would not pay. The same at both ends.
std::vector<size_t> divide(size_t bytes, const std::vector<int64_t>& bandwidths);

// Transports over several NICs as one: a long message is divided among them, a short one goes over
// the first. Those beyond the first are looked at only while there is something for them. They may
// serve others as well; whoever owns them destroys them before this one. Both ends must have made
// theirs of the same bandwidths in the same order.
//
// `mark`: a bit that no sender has in its tags, and that receives leave out when they match and
// compare afterwards. The parts of a message have it, so that none is taken for a whole one. A
// receive must be for as many bytes as the message has: what has another size or, in the bits left
// out, another tag ends it with that tag and those bytes (perhaps of a part), or as an error.
std::unique_ptr<Transport> make_rails(std::vector<RailTransport> rails, uint64_t mark);

// What connect() of such a transport takes: the peer's addresses, in the order of the rails.
std::string rails_address(const std::vector<std::string>& addresses);

}  // namespace hetcomm
