#include "health/control.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/packing.h"
#include "base/status.h"
#include "health/socket_address.h"

namespace hetcomm {
namespace {

constexpr uint64_t kMaxFrame = 1 << 16;
// A stranger may send this many bytes.
constexpr uint64_t kMaxIntroduction = 1 << 10;
// A stranger that has not shown the secret by then is dropped.
constexpr auto kIntroductionBound = std::chrono::seconds(10);
// With this many strangers, one of this age is dropped for a newer connection.
constexpr auto kMinStrangerAge = std::chrono::seconds(1);
constexpr int kMaxStrangers = 64;
// A duplicate arrives only among the latest news of its origin.
constexpr uint64_t kRememberedNews = 1024;
constexpr uint64_t kNotForwarded = 0;  // in place of the number of flooded news

[[noreturn]] void fail(const std::string& what) {
  throw Error(Code::transport, what + ": " + std::strerror(errno));
}

void set_no_delay(int descriptor) {
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

std::string frame(const std::string& body) { return Packer().put(body).take(); }

std::string frame(int origin, uint64_t number, const std::string& news) {
  return frame(Packer().put(static_cast<uint64_t>(origin)).put(number).put(news).take());
}

}  // namespace

ControlPlane::ControlPlane(int rank, int size, const std::string& address, Owner& owner)
    : rank_(rank), size_(size), owner_(owner) {
  SocketAddress at(address, 0);
  listener_ = at.make_socket();
  if (listener_ < 0 || bind(listener_, at.get(), at.length) != 0 ||
      listen(listener_, SOMAXCONN) != 0) {
    fail("cannot listen for control connections on " + address);
  }
  contact_ = address + " " + std::to_string(SocketAddress::port_of(listener_));
  owner_.watch(listener_);
}

ControlPlane::~ControlPlane() { close(); }

void ControlPlane::close() {
  for (auto& connection : connections_) release(connection->descriptor);
  connections_.clear();
  release(listener_);
}

void ControlPlane::release(ProcessDescriptor& descriptor) {
  if (descriptor < 0) return;
  owner_.unwatch(descriptor);
  descriptor = ProcessDescriptor();
}

bool ControlPlane::neighbour(int peer) const {
  const int apart = ((peer - rank_) % size_ + size_) % size_;
  auto power_of_two = [](int value) { return value > 0 && (value & (value - 1)) == 0; };
  return power_of_two(apart) || power_of_two(size_ - apart);
}

void ControlPlane::start_connecting(int peer, const std::string& contact) {
  const size_t space = contact.find(' ');
  SocketAddress to(contact.substr(0, space),
                   static_cast<uint16_t>(std::stoul(contact.substr(space + 1))));
  auto connection = std::make_unique<Connection>();
  connection->peer = peer;
  connection->authenticated = true;
  connection->descriptor = to.make_socket();
  if (connection->descriptor < 0) fail("cannot make a control connection");
  const int descriptor = connection->descriptor;
  connections_.push_back(std::move(connection));
  if (::connect(descriptor, to.get(), to.length) == 0) return;
  if (errno != EINPROGRESS && errno != EINTR) {
    fail("cannot connect to rank " + std::to_string(peer) + " at " + contact);
  }
}

void ControlPlane::introduce(Connection& connection) {
  set_no_delay(connection.descriptor);
  enable_keep_alive(connection.descriptor);
  connection.out = frame(Packer().put(secret_).put(static_cast<uint64_t>(rank_)).take());
  write(connection);
  owner_.watch(connection.descriptor);
}

void ControlPlane::connect(const std::vector<std::string>& contacts, const std::string& secret,
                           const Deadline& deadline) {
  secret_ = secret;
  for (int peer = rank_ + 1; peer < size_; ++peer) {
    if (neighbour(peer)) start_connecting(peer, contacts[peer]);
  }
  std::vector<Connection*> waiting;
  for (const auto& connection : connections_) waiting.push_back(connection.get());
  auto named = [&](const Connection& connection) {
    return "rank " + std::to_string(connection.peer) + " at " + contacts[connection.peer];
  };
  while (!waiting.empty()) {
    std::vector<pollfd> wanted;
    for (const Connection* one : waiting) wanted.push_back({one->descriptor, POLLOUT, 0});
    const auto bound = std::min<int64_t>(deadline.left_ms().count(), INT_MAX);
    const int ready = ::poll(wanted.data(), wanted.size(), static_cast<int>(bound));
    if (ready < 0 && errno != EINTR) fail("cannot wait for control connections");
    if (ready <= 0 && deadline.passed()) {
      std::string names;
      for (const Connection* one : waiting) names += (names.empty() ? "" : ", ") + named(*one);
      throw Error(Code::timeout, names + (waiting.size() == 1 ? " does" : ": each does") +
                                     " not answer; check that this host reaches it, or choose the "
                                     "interface with HETCOMM_SOCKET_IFNAME");
    }
    for (size_t i = 0; ready > 0 && i < wanted.size(); ++i) {
      if (wanted[i].revents == 0) continue;
      Connection& connection = *std::exchange(waiting[i], nullptr);
      errno = take_error(connection.descriptor);
      if (errno != 0) fail("cannot connect to " + named(connection));
      introduce(connection);
    }
    std::erase(waiting, nullptr);
  }
}

void ControlPlane::flood(const std::string& news) {
  seen_[rank_].insert(++flooded_);
  forward(rank_, flooded_, news, nullptr);
}

bool ControlPlane::tell(int peer, const std::string& news) {
  for (auto& connection : connections_) {
    if (connection->peer != peer || !connection->authenticated) continue;
    if (connection->descriptor < 0) continue;
    connection->out += frame(rank_, kNotForwarded, news);
    write(*connection);
    return true;
  }
  return false;
}

void ControlPlane::forward(int origin, uint64_t number, const std::string& news,
                           const Connection* except) {
  const std::string framed = frame(origin, number, news);
  for (auto& connection : connections_) {
    if (connection.get() == except || !connection->authenticated) continue;
    if (connection->descriptor < 0) continue;
    connection->out += framed;
    write(*connection);
  }
}

int ControlPlane::strangers() const {
  return static_cast<int>(
      std::count_if(connections_.begin(), connections_.end(), [](const auto& connection) {
        return connection->descriptor >= 0 && !connection->authenticated;
      }));
}

// False if the oldest stranger is too young. Connections are in order of age.
bool ControlPlane::drop_oldest_stranger() {
  for (auto& connection : connections_) {
    if (connection->descriptor < 0 || connection->authenticated) continue;
    if (Clock::now() - connection->since < kMinStrangerAge) return false;
    close(*connection);
    return true;
  }
  return false;
}

// A ready listener that cannot accept would wake the progress thread all the time. Without the
// watch the regular polls accept connections.
void ControlPlane::watch_listener(bool on) {
  if (on == listener_watched_) return;
  listener_watched_ = on;
  on ? owner_.watch(listener_) : owner_.unwatch(listener_);
}

void ControlPlane::warn_once(bool& warned, const std::string& text) {
  if (!std::exchange(warned, true)) log(LogLevel::warning, text, rank_);
}

void ControlPlane::accept_waiting() {
  for (int dropped = 0; dropped <= kMaxStrangers;) {
    if (strangers() >= kMaxStrangers) {
      warn_once(warned_of_strangers_,
                std::to_string(kMaxStrangers) + " connections of strangers at control port " +
                    contact_ +
                    ": none has shown this group's secret; the oldest make way for newer ones; "
                    "keep port scanners away from it");
      if (!drop_oldest_stranger()) break;
      ++dropped;
    }
    ProcessDescriptor accepted(accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (accepted < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return watch_listener(true);
      if (errno == EINTR || errno == ECONNABORTED) continue;
      warn_once(warned_of_descriptors_,
                "cannot accept control connections: " + std::string(std::strerror(errno)) +
                    "; tries again twice a second; raise the descriptor limit (ulimit -n)");
      if (!drop_oldest_stranger()) break;
      ++dropped;
      continue;
    }
    const int descriptor = accepted;
    set_no_delay(descriptor);
    enable_keep_alive(descriptor);
    auto connection = std::make_unique<Connection>();
    connection->descriptor = std::move(accepted);
    connections_.push_back(std::move(connection));
    owner_.watch(descriptor);
  }
  watch_listener(false);
}

void ControlPlane::poll() {
  accept_waiting();
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (connections_[i]->descriptor >= 0) write(*connections_[i]);
    if (connections_[i]->descriptor >= 0) read(*connections_[i]);
    Connection& connection = *connections_[i];
    if (connection.descriptor >= 0 && !connection.authenticated &&
        Clock::now() - connection.since > kIntroductionBound) {
      close(connection);
    }
  }
  std::erase_if(connections_, [](const auto& one) { return one->descriptor < 0; });
}

std::vector<int> ControlPlane::pending_output() const {
  std::vector<int> descriptors;
  for (const auto& connection : connections_) {
    if (connection->descriptor >= 0 && connection->authenticated && !connection->out.empty()) {
      descriptors.push_back(connection->descriptor);
    }
  }
  return descriptors;
}

void ControlPlane::write(Connection& connection) {
  while (!connection.out.empty()) {
    const ssize_t sent = send(connection.descriptor, connection.out.data(), connection.out.size(),
                              MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
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
      if (connection.in.size() <= 2 * max_record(connection)) continue;
      break;  // the rest at the next poll
    }
    ended = got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
    break;
  }
  try {
    while (handle_record(connection)) {
    }
  } catch (const Error& error) {
    if (connection.authenticated) {
      owner_.on_malformed(connection.peer, error.what());
    } else {
      log(LogLevel::warning, std::string("control connection refused: ") + error.what(), rank_);
    }
    ended = true;
  }
  if (ended) close(connection);
}

uint64_t ControlPlane::max_record(const Connection& connection) {
  return connection.authenticated ? kMaxFrame : kMaxIntroduction;
}

bool ControlPlane::handle_record(Connection& connection) {
  if (connection.in.size() < sizeof(uint64_t)) return false;
  const uint64_t length = Unpacker(connection.in).number();
  if (length > max_record(connection)) {
    throw Error(Code::invalid_argument, "expected a record of at most " +
                                            std::to_string(max_record(connection)) +
                                            " bytes, got " + std::to_string(length));
  }
  if (connection.in.size() < sizeof length + length) return false;
  const std::string body = connection.in.substr(sizeof length, length);
  connection.in.erase(0, sizeof length + length);
  handle(connection, body);
  return true;
}

void ControlPlane::handle(Connection& connection, const std::string& body) {
  Unpacker unpack(body);
  if (!connection.authenticated) {
    const std::string secret = unpack.text();
    const uint64_t peer = unpack.number();
    if (secret_.empty() || secret != secret_ || peer >= static_cast<uint64_t>(size_)) {
      throw Error(Code::invalid_argument, "it does not know this group's secret");
    }
    connection.peer = static_cast<int>(peer);
    connection.authenticated = true;
    write(connection);
    return;
  }
  const uint64_t origin = unpack.number(), number = unpack.number();
  const std::string news = unpack.text();
  if (origin >= static_cast<uint64_t>(size_)) {
    throw Error(Code::invalid_argument, "expected news from a rank below " + std::to_string(size_) +
                                            ", got rank " + std::to_string(origin));
  }
  if (number == kNotForwarded) {
    if (static_cast<int>(origin) != connection.peer) {
      throw Error(Code::invalid_argument, "expected news of rank " +
                                              std::to_string(connection.peer) + ", got rank " +
                                              std::to_string(origin));
    }
    return owner_.on_news(connection.peer, news);
  }
  std::set<uint64_t>& seen = seen_[static_cast<int>(origin)];
  if (!seen.insert(number).second) return;
  if (seen.size() > kRememberedNews) seen.erase(seen.begin());
  owner_.on_news(static_cast<int>(origin), news);  // throws on a malformed record
  forward(static_cast<int>(origin), number, news, &connection);
}

void ControlPlane::close(Connection& connection) {
  release(connection.descriptor);
  if (connection.peer >= 0) owner_.on_lost(connection.peer);
}

}  // namespace hetcomm
