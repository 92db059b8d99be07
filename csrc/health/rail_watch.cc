#include "health/rail_watch.h"

#include <cstring>
#include <utility>

#include "health/socket_address.h"
#include "health/tcp_state.h"

namespace hetcomm {

void RailWatch::add(ProcessDescriptor descriptor, RailEnds rail) {
  const int number = descriptor;
  enable_keep_alive(number, peer_timeout());
  connections_[number] = {std::move(descriptor), std::move(rail)};
  add_to_epoll(events_, number, 0);  // epoll reports the end of a connection in any case
}

std::optional<RailWatch::Failure> RailWatch::next_failure() {
  epoll_event event{};
  while (epoll_wait(events_, &event, 1, 0) == 1) {
    const int error = take_error(event.data.fd);
    epoll_ctl(events_, EPOLL_CTL_DEL, event.data.fd, nullptr);
    const bool network =
        error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN;
    if (!network) continue;
    const Connection& connection = connections_.at(event.data.fd);
    return Failure{connection.rail, std::strerror(error)};
  }
  return std::nullopt;
}

}  // namespace hetcomm
