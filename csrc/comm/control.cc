#include "comm/control.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "base/log.h"
#include "base/packing.h"
#include "base/status.h"
#include "comm/socket_address.h"
#include "comm/unshared.h"

namespace hetcomm {
namespace {

constexpr uint64_t kLongestFrame = 1 << 16;
// A stranger who does not show the secret within this time is sent away.
constexpr auto kIntroductionBound = std::chrono::seconds(10);
// News older than so many of the same origin is not expected to arrive again.
constexpr uint64_t kRememberedNews = 1024;

[[noreturn]] void fail(const std::string& what) {
  throw Error(Code::transport, what + ": " + std::strerror(errno));
}

void set_no_delay(int descriptor) {
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

std::string frame(const std::string& body) { return Packer().put(body).take(); }

}  // namespace

ControlPlane::ControlPlane(int rank, int size, const std::string& address, Events events,
                           std::function<void(int)> watch, std::function<void(int)> unwatch)
    : rank_(rank),
      size_(size),
      events_(std::move(events)),
      watch_(std::move(watch)),
      unwatch_(std::move(unwatch)) {
  SocketAddress at(address, 0);
  listener_ = socket(at.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listener_ < 0 || bind(listener_, at.get(), at.length) != 0 || listen(listener_, 128) != 0) {
    fail("cannot listen for control connections on " + address);
  }
  unshared::add(listener_);
  contact_ = address + " " + std::to_string(SocketAddress::port_of(listener_));
  watch_(listener_);
}

ControlPlane::~ControlPlane() { close(); }

void ControlPlane::close() {
  for (auto& connection : connections_) {
    if (connection->descriptor >= 0) release(connection->descriptor);
  }
  connections_.clear();
  if (listener_ >= 0) release(listener_);
  listener_ = -1;
}

// A child of fork() has closed its own already, and shares the parent's poll set.
void ControlPlane::release(int descriptor) {
  if (getpid() != process_) return;
  unwatch_(descriptor);
  unshared::remove(descriptor);
  ::close(descriptor);
}

bool ControlPlane::neighbour(int peer) const {
  const int apart = ((peer - rank_) % size_ + size_) % size_;
  auto power_of_two = [](int value) { return value > 0 && (value & (value - 1)) == 0; };
  return power_of_two(apart) || power_of_two(size_ - apart);
}

void ControlPlane::connect(const std::vector<std::string>& contacts, const std::string& secret,
                           const Deadline& deadline) {
  secret_ = secret;
  for (int peer = rank_ + 1; peer < size_; ++peer) {
    if (!neighbour(peer)) continue;
    const std::string& contact = contacts[peer];
    const size_t space = contact.find(' ');
    SocketAddress to(contact.substr(0, space),
                     static_cast<uint16_t>(std::stoul(contact.substr(space + 1))));
    auto connection = std::make_unique<Connection>();
    connection->peer = peer;
    connection->introduced = true;
    connection->descriptor =
        socket(to.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connection->descriptor < 0) fail("cannot make a control connection");
    const int descriptor = connection->descriptor;
    unshared::add(descriptor);
    connections_.push_back(std::move(connection));
    if (::connect(descriptor, to.get(), to.length) != 0 && errno != EINPROGRESS) {
      fail("cannot connect to rank " + std::to_string(peer) + " at " + contact);
    }
    pollfd wanted{descriptor, POLLOUT, 0};
    const auto bound = std::min<int64_t>(deadline.left_ms().count(), INT_MAX);
    if (::poll(&wanted, 1, static_cast<int>(bound)) <= 0) {
      throw Error(Code::timeout, "rank " + std::to_string(peer) + " at " + contact +
                                     " does not answer; check that this host reaches it, or choose "
                                     "the interface with HETCOMM_SOCKET_IFNAME");
    }
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
      errno = error;
      fail("cannot connect to rank " + std::to_string(peer) + " at " + contact);
    }
    set_no_delay(descriptor);
    end_when_unreachable(descriptor);
    connections_.back()->out =
        frame(Packer().put(secret_).put(static_cast<uint64_t>(rank_)).take());
    write(*connections_.back());
    watch_(descriptor);
  }
}

void ControlPlane::flood(const std::string& news) {
  seen_[rank_].insert(++flooded_);
  forward(rank_, flooded_, news, nullptr);
}

void ControlPlane::forward(int origin, uint64_t number, const std::string& news,
                           const Connection* except) {
  const std::string framed =
      frame(Packer().put(static_cast<uint64_t>(origin)).put(number).put(news).take());
  for (auto& connection : connections_) {
    if (connection.get() == except || !connection->introduced) continue;
    if (connection->descriptor < 0) continue;
    connection->out += framed;
    write(*connection);
  }
}

void ControlPlane::poll() {
  while (true) {
    const int descriptor = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor < 0) break;
    unshared::add(descriptor);
    set_no_delay(descriptor);
    end_when_unreachable(descriptor);
    auto connection = std::make_unique<Connection>();
    connection->descriptor = descriptor;
    connections_.push_back(std::move(connection));
    watch_(descriptor);
  }
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (connections_[i]->descriptor >= 0) write(*connections_[i]);
    if (connections_[i]->descriptor >= 0) read(*connections_[i]);
    Connection& connection = *connections_[i];
    if (connection.descriptor >= 0 && !connection.introduced &&
        Clock::now() - connection.since > kIntroductionBound) {
      close(connection);
    }
  }
  std::erase_if(connections_, [](const auto& one) { return one->descriptor < 0; });
}

bool ControlPlane::all_written() const {
  for (const auto& connection : connections_) {
    if (connection->descriptor >= 0 && connection->introduced && !connection->out.empty()) {
      return false;
    }
  }
  return true;
}

void ControlPlane::write(Connection& connection) {
  while (!connection.out.empty()) {
    const ssize_t sent = send(connection.descriptor, connection.out.data(), connection.out.size(),
                              MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent <= 0) return;  // an error is noticed when reading
    connection.out.erase(0, static_cast<size_t>(sent));
  }
}

void ControlPlane::read(Connection& connection) {
  char bytes[4096];
  bool ended = false;
  while (true) {
    const ssize_t got = recv(connection.descriptor, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got > 0) {
      connection.in.append(bytes, static_cast<size_t>(got));
      if (connection.in.size() <= 2 * kLongestFrame) continue;
      break;  // the rest at the next poll
    }
    ended = got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
    break;
  }
  while (connection.in.size() >= sizeof(uint64_t)) {
    const uint64_t length = Unpacker(connection.in).number();
    if (length > kLongestFrame) {
      log(LogLevel::warning, "garbage on a control connection; closing it", rank_);
      ended = true;
      break;
    }
    if (connection.in.size() < sizeof length + length) break;
    const std::string body = connection.in.substr(sizeof length, length);
    connection.in.erase(0, sizeof length + length);
    try {
      handle(connection, body);
    } catch (const Error& error) {
      log(LogLevel::warning, std::string("control connection refused: ") + error.what(), rank_);
      ended = true;
      break;
    }
  }
  if (ended) close(connection);
}

void ControlPlane::handle(Connection& connection, const std::string& body) {
  Unpacker unpack(body);
  if (!connection.introduced && connection.peer < 0) {
    const std::string secret = unpack.text();
    const uint64_t peer = unpack.number();
    if (secret_.empty() || secret != secret_ || peer >= static_cast<uint64_t>(size_)) {
      throw Error(Code::invalid_argument, "it does not know this group's secret");
    }
    connection.peer = static_cast<int>(peer);
    connection.introduced = true;
    write(connection);
    return;
  }
  const uint64_t origin = unpack.number(), number = unpack.number();
  const std::string news = unpack.text();
  if (origin >= static_cast<uint64_t>(size_)) {
    throw Error(Code::invalid_argument, "news from a rank that is not in the group");
  }
  std::set<uint64_t>& seen = seen_[static_cast<int>(origin)];
  if (!seen.insert(number).second) return;
  if (seen.size() > kRememberedNews) seen.erase(seen.begin());
  forward(static_cast<int>(origin), number, news, &connection);
  events_.news(static_cast<int>(origin), news);
}

void ControlPlane::close(Connection& connection) {
  release(connection.descriptor);
  connection.descriptor = -1;
  if (connection.peer >= 0) events_.lost(connection.peer);
}

}  // namespace hetcomm
