#include "emulated/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <system_error>

namespace hetcomm::emulated {

namespace {

constexpr int kBriefly = 50;  // milliseconds between checks of an abort

[[noreturn]] void throw_system(const std::string& what) {
  throw Failure{ccl_system_error, what + ": " + std::strerror(errno)};
}

// NCCL, too, takes a refused connection for a failure of the other process.
[[noreturn]] void throw_unconnected(const in_addr& address) {
  const std::string what = "connecting to " + to_text(address);
  if (errno != ECONNREFUSED && errno != ECONNRESET && errno != ETIMEDOUT) throw_system(what);
  throw Failure{ccl_remote_error, what + ": " + std::strerror(errno)};
}

Descriptor make_socket() {
  Descriptor descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (descriptor < 0) throw_system("socket");
  return descriptor;
}

void send_at_once(int descriptor) {
  int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void wait_for(int descriptor, short events, const Stop& stop, int milliseconds, bool& expired) {
  auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  std::vector<pollfd> polled(1);
  while (true) {
    polled[0] = {descriptor, events, 0};
    poll_briefly(polled);
    if (polled[0].revents != 0) return;
    if (stop.raised()) throw Aborted{};
    if (milliseconds >= 0 && std::chrono::steady_clock::now() >= end) {
      expired = true;
      return;
    }
  }
}

void wait_for(int descriptor, short events, const Stop& stop) {
  bool expired = false;
  wait_for(descriptor, events, stop, -1, expired);
}

// Reads NCCL_SOCKET_IFNAME and NCCL_IB_HCA like NCCL: a list of prefixes, each before a ":". "=" in
// front means whole names, "^" all names but these.
bool chosen(const std::string& name, std::string filter) {
  bool except = filter.starts_with('^');
  if (except) filter.erase(0, 1);
  bool whole = filter.starts_with('=');
  if (whole) filter.erase(0, 1);
  std::istringstream list(filter);
  bool matched = false;
  for (std::string entry; std::getline(list, entry, ',');) {
    entry.resize(entry.find(':') == std::string::npos ? entry.size() : entry.find(':'));
    matched |= whole ? name == entry : name.starts_with(entry);
  }
  return matched != except;
}

std::vector<Interface> interfaces() {
  std::vector<Interface> outside, loopback;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) throw_system("getifaddrs");
  for (ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    if ((each->ifa_flags & IFF_UP) == 0) continue;
    auto address = reinterpret_cast<sockaddr_in*>(each->ifa_addr)->sin_addr;
    auto& list = (each->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : outside;
    list.push_back({each->ifa_name, address});
  }
  freeifaddrs(all);
  outside.insert(outside.end(), loopback.begin(), loopback.end());
  return outside;
}

}  // namespace

bool retry() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

void poll_briefly(std::vector<pollfd>& polled) {
  if (poll(polled.data(), polled.size(), kBriefly) < 0 && errno != EINTR) throw_system("poll");
}

Socket Socket::listen_at(in_addr address, int backlog) {
  Socket made(make_socket());
  sockaddr_in bound{};
  bound.sin_family = AF_INET;
  bound.sin_addr = address;
  if (bind(made.descriptor_, reinterpret_cast<sockaddr*>(&bound), sizeof bound) != 0 ||
      listen(made.descriptor_, backlog) != 0) {
    throw_system("listening at " + to_text(address));
  }
  return made;
}

Socket Socket::connect_to(const sockaddr_in& address, const Stop& stop) {
  Socket made(make_socket());
  const auto* target = reinterpret_cast<const sockaddr*>(&address);
  if (connect(made.descriptor_, target, sizeof address) != 0) {
    if (errno != EINPROGRESS) throw_unconnected(address.sin_addr);
    wait_for(made.descriptor_, POLLOUT, stop);
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(made.descriptor_, SOL_SOCKET, SO_ERROR, &error, &length);
    errno = error;
    if (error != 0) throw_unconnected(address.sin_addr);
  }
  send_at_once(made.descriptor_);
  return made;
}

sockaddr_in Socket::local() const {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  if (getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw_system("getsockname");
  }
  return address;
}

Socket Socket::accept(const Stop& stop) const {
  while (true) {
    wait_for(descriptor_, POLLIN, stop);
    Socket made{Descriptor(accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK))};
    if (!made.open()) {
      if (retry() || errno == ECONNABORTED) continue;
      throw_system("accept");
    }
    send_at_once(made.descriptor_);
    return made;
  }
}

void Socket::send_all(const void* data, size_t bytes, const Stop& stop) const {
  const char* rest = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t sent = send(descriptor_, rest, bytes, MSG_NOSIGNAL);
    if (sent < 0) {
      if (!retry()) throw Failure{ccl_remote_error, "send: " + std::string(strerror(errno))};
      wait_for(descriptor_, POLLOUT, stop);
      continue;
    }
    rest += sent;
    bytes -= static_cast<size_t>(sent);
  }
}

bool Socket::receive_all(void* data, size_t bytes, const Stop& stop, int milliseconds) const {
  char* rest = static_cast<char*>(data);
  while (bytes > 0) {
    ssize_t got = recv(descriptor_, rest, bytes, 0);
    if (got == 0 || (got < 0 && !retry())) return false;
    if (got < 0) {
      bool expired = false;
      wait_for(descriptor_, POLLIN, stop, milliseconds, expired);
      if (expired) return false;
      continue;
    }
    rest += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool interface_named() {
  const char* filter = std::getenv("NCCL_SOCKET_IFNAME");
  return filter != nullptr && *filter != '\0';
}

Interface choose_interface() {
  std::vector<Interface> all = interfaces();
  std::string filter = interface_named() ? std::getenv("NCCL_SOCKET_IFNAME") : "^docker,virbr";
  for (const Interface& each : all) {
    if (chosen(each.name, filter)) return each;
  }
  throw Failure{ccl_invalid_usage, "no interface with an IPv4 address matches NCCL_SOCKET_IFNAME=" +
                                       filter + "; correct or unset the variable"};
}

std::string interface_of(in_addr address) {
  for (const Interface& each : interfaces()) {
    if (each.address.s_addr == address.s_addr) return each.name;
  }
  return "?";
}

std::vector<std::string> adapters() {
  const char* root = std::getenv("HETCOMM_SYSFS_ROOT");
  const char* filter = std::getenv("NCCL_IB_HCA");
  std::vector<std::string> names;
  std::error_code none;
  std::string folder = std::string(root != nullptr ? root : "/sys") + "/class/infiniband";
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    std::string name = entry.path().filename();
    if (filter == nullptr || chosen(name, filter)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string to_text(in_addr address) {
  char text[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &address, text, sizeof text);
  return text;
}

}  // namespace hetcomm::emulated
