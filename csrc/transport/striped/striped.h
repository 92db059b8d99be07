#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "transport/registry.h"

namespace hetcomm {

// The bytes of a message that each stripe carries, in this order: in proportion to the bandwidths,
// or all on the first, where dividing would not pay. The same at both ends.
std::vector<size_t> divide(size_t bytes, const std::vector<int64_t>& bandwidths);

// A transport over one NIC alone. Owned by others, who destroy it before the striped one.
struct StripeTransport {
  Transport* transport = nullptr;
  int64_t bandwidth = 0;  // bytes per second
};

// Several NICs as one transport. A long message is divided among the stripes, a short one goes over
// the first. Stripes beyond the first are polled rarely while they have nothing in flight. Both
// ends must have the same bandwidths in the same order.
//
// Parts of a message carry kPartTag. A receive must have the size of its message. A message of
// another size ends the receive with an error, or with the message's own tag and size.
std::unique_ptr<Transport> make_striped_transport(std::vector<StripeTransport> stripes);

// The row of the registry: over UCX on plain Ethernet. Serves links whose ends share several NICs.
const TransportKind& striped_transport();

}  // namespace hetcomm
