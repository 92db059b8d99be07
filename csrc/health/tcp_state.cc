#include "health/tcp_state.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/config.h"

namespace hetcomm {
namespace {

bool read_info(int descriptor, tcp_info& info) {
  socklen_t length = sizeof info;
  return getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &length) == 0;
}

}  // namespace

std::chrono::seconds peer_timeout() {
  return std::chrono::seconds(setting("HETCOMM_PEER_TIMEOUT", 2, 2, 86'400));
}

std::chrono::milliseconds silence_of_host(int descriptor) {
  tcp_info info{};
  if (!read_info(descriptor, info)) return {};
  return std::chrono::milliseconds(std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv));
}

std::chrono::microseconds round_trip(int descriptor) {
  tcp_info info{};
  return std::chrono::microseconds(read_info(descriptor, info) ? info.tcpi_rtt : 0);
}

int64_t unacknowledged(int descriptor) {
  tcp_info info{};
  if (!read_info(descriptor, info) || info.tcpi_state == TCP_CLOSE) return 0;
  int bytes = 0;
  return ioctl(descriptor, SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

void enable_keep_alive(int descriptor, std::chrono::seconds bound) {
  const int on = 1, seconds = static_cast<int>(bound.count());
  const int idle = std::clamp(seconds / 2, 1, 3600), probes = 3 * seconds / idle - 1;
  setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

void outlast_outages(int descriptor) {
  const unsigned milliseconds = 3 * 86'400'000;
  setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
}

void acknowledge_at_once(int descriptor) {
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
}

void wake_after(int descriptor, int bytes) {
  setsockopt(descriptor, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

}  // namespace hetcomm
