#pragma once

#include <string>
#include <vector>

namespace hetcomm {

// Throws Error(transport) if the kernel has no free port for the first IPv4 address of one of these
// interfaces. UCX 1.22 retries without end there. Another process may still take the last port
// between this check and UCX.
void require_free_ports(const std::vector<std::string>& interfaces);

}  // namespace hetcomm
