#pragma once

#include "transport/registry.h"

namespace hetcomm {

// Links between transports of one process, for ranks that are its threads. Carries host memory. The
// sender copies a message of up to 8 KiB. The receiver's thread copies a longer message from the
// sender's memory. One lock per process guards all messages.
const TransportKind& loopback_transport();

}  // namespace hetcomm
