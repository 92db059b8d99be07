#include "health/rail_watch.h"

#include <sys/epoll.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/close_on_fork.h"
#include "health/socket_address.h"

namespace hetcomm {

RailWatch::RailWatch() : events_(epoll_create1(EPOLL_CLOEXEC)) {
  if (events_ >= 0) return;
  throw Error(Code::transport, std::string("epoll_create1: ") + std::strerror(errno) +
                                   "; raise the descriptor limit");
}

RailWatch::~RailWatch() {
  for (const auto& [number, connection] : connections_) close_on_fork::remove(number);
}

void RailWatch::add(Descriptor descriptor, int peer, std::string rail) {
  const int number = descriptor;
  enable_keep_alive(number);
  close_on_fork::add(number);
  connections_[number] = {std::move(descriptor), peer, std::move(rail)};
  epoll_event event{};
  event.data.fd = number;  // its end is reported unasked
  if (epoll_ctl(events_, EPOLL_CTL_ADD, number, &event) == 0) return;
  throw Error(Code::transport,
              std::string("epoll_ctl: ") + std::strerror(errno) + "; raise the descriptor limit");
}

Status RailWatch::next_failure() {
  epoll_event event{};
  while (epoll_wait(events_, &event, 1, 0) == 1) {
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(event.data.fd, SOL_SOCKET, SO_ERROR, &error, &length);
    epoll_ctl(events_, EPOLL_CTL_DEL, event.data.fd, nullptr);
    const bool network =
        error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN;
    if (!network) continue;
    const Connection& connection = connections_.at(event.data.fd);
    return Status(Code::transport,
                  connection.rail + " any more: " + std::strerror(error) +
                      "; mend the network, or leave it out with HETCOMM_SOCKET_IFNAME; or see "
                      "whether the host runs",
                  -1, connection.peer);
  }
  return {};
}

}  // namespace hetcomm
