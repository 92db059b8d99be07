#pragma once

#include <string>
#include <vector>

#include "transport/ucx/library.h"

namespace hetcomm {

// While it lives, the UCX_* variables that UCX reads when it is loaded have hetcomm's values,
// except those that the user has set.
class LoadEnvironment {
 public:
  LoadEnvironment();
  ~LoadEnvironment();
  LoadEnvironment(const LoadEnvironment&) = delete;
  LoadEnvironment& operator=(const LoadEnvironment&) = delete;

 private:
  std::vector<const char*> set_;
};

// The RDMA devices of this machine, such as "mlx5_0".
std::vector<std::string> rdma_devices();

// UCX's NET_DEVICES for these interfaces (see make_ucx_transport). Throws Error(invalid_argument).
std::string net_devices(const std::vector<std::string>& interfaces, const UcxLibrary& ucx);

// UCX's configuration for a transport on these interfaces: hetcomm's settings, except where the
// environment has UCX_<setting>; without `rdma`, the environment does not choose transports and
// devices either. `chooses_protocol`: whether each message can be eager or a rendezvous.
// The caller releases it.
ucp_config_t* read_configuration(const std::vector<std::string>& interfaces, bool rdma,
                                 const UcxLibrary& ucx, bool& chooses_protocol);

}  // namespace hetcomm
