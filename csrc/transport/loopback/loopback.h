#pragma once

#include "transport/registry.h"

namespace hetcomm {

// Links between transports of one process, for ranks that are its threads. Carries host memory. A
// message of up to 8 KiB is copied when it is sent. A longer one is copied once, by the receiver's
// thread, from the sender's memory.
const TransportKind& loopback_transport();

}  // namespace hetcomm
