#include "transport/ucx/free_ports.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <set>

#include "base/descriptor.h"
#include "base/free_port_remedy.h"
#include "base/status.h"

namespace hetcomm {
namespace {

bool has_free_port(sockaddr_in address) {
  const Descriptor probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  address.sin_port = 0;
  return probe < 0 || bind(probe, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ||
         errno != EADDRINUSE;
}

}  // namespace

void require_free_ports(const std::vector<std::string>& interfaces) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> addresses(list, freeifaddrs);
  std::set<std::string> unchecked(interfaces.begin(), interfaces.end());
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if (unchecked.erase(one->ifa_name) == 0) continue;
    if (has_free_port(*reinterpret_cast<const sockaddr_in*>(one->ifa_addr))) continue;
    throw Error(Code::transport, std::string("UCX: expected a free TCP port of ") + one->ifa_name +
                                     "; got none; " + kFreePortRemedy);
  }
}

}  // namespace hetcomm
