#pragma once

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <optional>
#include <string>

#include "base/process_descriptor.h"
#include "base/status.h"

namespace hetcomm {

// An IP address and a port for socket calls. The constructor throws Error(transport).
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  SocketAddress(const std::string& ip, uint16_t port) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
    if (inet_pton(AF_INET, ip.c_str(), &v4->sin_addr) == 1) {
      v4->sin_family = AF_INET;
      v4->sin_port = htons(port);
      length = sizeof *v4;
    } else if (inet_pton(AF_INET6, ip.c_str(), &v6->sin6_addr) == 1) {
      v6->sin6_family = AF_INET6;
      v6->sin6_port = htons(port);
      length = sizeof *v6;
    } else {
      throw Error(Code::transport, "expected an IP address, got \"" + ip + "\"");
    }
  }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  // A TCP socket for this kind of address; -1 and errno if there is none.
  ProcessDescriptor make_socket(int flags = SOCK_NONBLOCK) const {
    return ProcessDescriptor(socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  }

  // The port that the kernel gave to a bound socket.
  static uint16_t port_of(int descriptor) {
    sockaddr_storage bound{};
    socklen_t length = sizeof bound;
    getsockname(descriptor, reinterpret_cast<sockaddr*>(&bound), &length);
    return ntohs(bound.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&bound)->sin_port
                                            : reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port);
  }
};

// The IP address of the other end of a connection.
inline std::optional<std::string> peer_address(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char host[NI_MAXHOST] = "";
  auto* peer = reinterpret_cast<sockaddr*>(&address);
  if (getpeername(descriptor, peer, &length) != 0 ||
      getnameinfo(peer, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) {
    return std::nullopt;
  }
  return host;
}

// The error of a connection, which the kernel reports once; 0 if there is none.
inline int take_error(int descriptor) {
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

}  // namespace hetcomm
