#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "transport/ucx/library.h"
#include "transport/ucx/ucx.h"

namespace hetcomm {

// UCX reads some UCX_* variables when it is loaded. While this object exists, these variables have
// hetcomm's values, unless the user has set them.
class LoadEnvironment {
 public:
  LoadEnvironment();
  ~LoadEnvironment();
  LoadEnvironment(const LoadEnvironment&) = delete;

 private:
  std::vector<const char*> set_;
};

// The RDMA devices of this machine, such as "mlx5_0".
std::vector<std::string> rdma_devices();

// An IPv4 or IPv6 address, without a port.
std::string address_text(const sockaddr& address);

// IP addresses of interfaces that lead to other hosts.
std::vector<std::string> outward_addresses();

// The kinds of shared memory that a transport uses, and those that the system refuses: UCX fails
// with "Shared memory error" or "Out of memory" where a permitted kind does not work.
struct SharedMemory {
  std::vector<std::string> works, refused = {"shm"};
  std::string reasons = {};

  static SharedMemory probe();
  void refuse(const std::string& kind, const std::string& why);  // one that works
  std::vector<std::string> kinds() const;                        // see Transport::shared_memory()
};

// UCX's configuration for a transport on these interfaces (see make_ucx_transport). It has
// hetcomm's settings, unless the environment has UCX_<setting>. With Carriers::tcp the environment
// chooses neither transports nor devices. Sets `chooses_protocol` if each message can be eager or a
// rendezvous. The caller releases the configuration. Throws Error, also if an interface has no free
// port.
ucp_config_t* read_configuration(const std::vector<std::string>& interfaces, Carriers carriers,
                                 const SharedMemory& memory, const UcxLibrary& ucx,
                                 bool& chooses_protocol);

}  // namespace hetcomm
