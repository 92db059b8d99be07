#pragma once

#include <chrono>
#include <cstdint>

namespace hetcomm {

// What the kernel knows of a TCP connection. Kernels answer for their processes, so a stopped or
// busy process does not look like a host that is gone.

// A rank counts as unreachable after this time without a sign of its host: HETCOMM_PEER_TIMEOUT.
// Throws Error(invalid_argument).
std::chrono::seconds peer_timeout();

// The time since the peer's host last acknowledged or sent anything. Zero if the kernel cannot
// tell.
std::chrono::milliseconds silence_of_host(int descriptor);

// The smoothed time of a round trip to the peer's host. Zero if the kernel cannot tell.
std::chrono::microseconds round_trip(int descriptor);

// The bytes that were sent and not acknowledged. Zero if the connection is over.
int64_t unacknowledged(int descriptor);

// The kernel asks an idle peer for a sign of life after half of `bound`. An idle connection to a
// host that vanishes ends after about three times `bound`.
void enable_keep_alive(int descriptor, std::chrono::seconds bound);

// Sets TCP_USER_TIMEOUT to three days, so that peer_timeout() alone decides. Linux 6.18 may count
// this time from an earlier outage of this host's own link. With a value of seconds it ended a
// connection after 0.4 s of silence.
void outlast_outages(int descriptor);

// This host acknowledges what has arrived without the usual delay of up to 40 ms.
void acknowledge_at_once(int descriptor);

// This end sleeps until so many bytes have arrived, or the connection is over.
void wake_after(int descriptor, int bytes);

}  // namespace hetcomm
