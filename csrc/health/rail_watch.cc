#include "health/rail_watch.h"

#include <utility>

#include "health/socket_address.h"

namespace hetcomm {

void RailWatch::add(ProcessDescriptor descriptor, int peer, std::string rail) {
  const int number = descriptor;
  enable_keep_alive(number);
  connections_[number] = {std::move(descriptor), peer, std::move(rail)};
  add_to_epoll(events_, number, 0);  // epoll reports the end of a connection in any case
}

Status RailWatch::next_failure() {
  epoll_event event{};
  while (epoll_wait(events_, &event, 1, 0) == 1) {
    const int error = take_error(event.data.fd);
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
