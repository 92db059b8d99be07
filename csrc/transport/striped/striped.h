#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "transport/registry.h"

namespace hetcomm {

// The bytes of a message that each stripe carries, in proportion to the bandwidths. Only one number
// if dividing would not pay: the first stripe carries all. Both ends get the same numbers.
std::vector<size_t> divide(size_t bytes, const std::vector<int64_t>& bandwidths);

// The stripes that carry a message, the fastest first. The first one carries a message that is not
// divided.
using Layout = std::vector<size_t>;

// The bytes of a message over some of the stripes.
std::vector<size_t> divide(size_t bytes, const std::vector<int64_t>& bandwidths,
                           const Layout& over);

// A transport over one NIC alone. The owner destroys it before the striped transport.
struct StripeTransport {
  Transport* transport = nullptr;
  int64_t bandwidth = 0;  // bytes per second
};

// Several NICs as one transport. A long message is divided among the stripes. A short message goes
// over the first stripe. The loss of all stripes but one loses no message whose receive knows its
// link (README.md). Idle stripes beyond the first are polled rarely. Both ends must have the
// same bandwidths in the same order.
//
// Parts of a message carry kPartTag. A receive must have the size of its message. A message of
// another size ends the receive with an error, or with the message's own tag and size.
std::unique_ptr<Transport> make_striped_transport(std::vector<StripeTransport> stripes);

// The row of the registry: over UCX on plain Ethernet, for links whose ends share several NICs.
const TransportKind& striped_transport();

}  // namespace hetcomm
