#include "base/free_port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>

#include "base/descriptor.h"
#include "base/status.h"

namespace hetcomm {

void require_free_port(const char* user) {
  const Descriptor probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  if (probe < 0 || bind(probe, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0) return;
  if (errno != EADDRINUSE) return;
  throw Error(Code::transport,
              std::string(user) + ": expected a free TCP port; got none; " + kNoFreePort);
}

}  // namespace hetcomm
