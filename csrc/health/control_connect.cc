// How control connections begin: this rank connects to neighbours, and accepts neighbours and
// strangers.

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <sstream>
#include <utility>

#include "base/config.h"
#include "base/free_port_remedy.h"
#include "base/log.h"
#include "health/control.h"
#include "health/socket_address.h"

namespace hetcomm {
namespace {

// A stranger that has not proven the group's key by then is dropped. While a neighbour is missing,
// a stranger may be this neighbour, which may be slow or stopped for a while.
constexpr auto kProofBound = std::chrono::seconds(10), kNeighbourBound = std::chrono::seconds(30);
// With this many strangers, one of this age is dropped for a newer connection.
constexpr auto kMinStrangerAge = std::chrono::seconds(1);
constexpr int kMaxStrangers = 64;
constexpr auto kKnockBound = std::chrono::milliseconds(100);

[[noreturn]] void fail(const std::string& what) {
  const int error = errno;
  throw Error(Code::transport,
              what + ": " + std::strerror(error) +
                  (error == EADDRINUSE ? std::string("; ") + kFreePortRemedy : ""));
}

// A rank listens before it tells its contact. A killed rank also resets connections that it has not
// accepted.
[[noreturn]] void fail_to_connect(int rank, int peer, const std::string& contact, int error) {
  const bool ended = error == ECONNREFUSED || error == ECONNRESET;
  const bool loopback = contact.starts_with("127.") || contact.starts_with("::1 ");
  std::string remedy = ended ? "its process has ended or given up, see its own log; or a firewall "
                               "rejects the port; or the address leads to another host"
                             : "check that this host reaches the address";
  remedy += loopback ? ", for the loopback reaches its own host only, and the rank's host has no "
                       "better address; see \"hetcomm topo\" there"
                     : ", choose the interface with HETCOMM_SOCKET_IFNAME";
  if (error == EADDRNOTAVAIL) remedy += std::string("; or ") + kFreePortRemedy;
  throw Error(Status(ended ? Code::peer_failed : Code::transport,
                     "rank " + std::to_string(rank) + " on " + host_name() +
                         " cannot connect to rank " + std::to_string(peer) + " at " + contact +
                         ": " + std::strerror(error) + "; " + remedy,
                     rank, peer));
}

// "198.18.0.1 40123 198.18.1.1 40124"
std::vector<Listener> listeners_of(int peer, const std::string& contact) {
  std::vector<Listener> listeners;
  std::istringstream from(contact);
  for (std::string address, port; from >> address >> port;) {
    uint16_t number = 0;
    const auto end = port.data() + port.size();
    if (std::from_chars(port.data(), end, number).ptr != end || number == 0) break;
    listeners.push_back({address, number});
  }
  if (!listeners.empty()) return listeners;
  throw Error(Code::invalid_argument, "rank " + std::to_string(peer) +
                                          ": expected the address and port of its control " +
                                          "connections, got \"" + contact.substr(0, 100) +
                                          "\"; run the same hetcomm version on every rank");
}

void set_no_delay(int descriptor) {
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

ControlPlane::ControlPlane(int rank, int size, const std::string& address, Owner& owner)
    : rank_(rank), size_(size), owner_(owner) {
  if (!listen_on(address)) fail("cannot listen for control connections on " + address);
}

void ControlPlane::listen_at(const std::string& address) { listen_on(address); }

bool ControlPlane::listen_on(const std::string& address) {
  SocketAddress at(address, 0);
  ProcessDescriptor listener = at.make_socket();
  if (listener < 0 || bind(listener, at.get(), at.length) != 0 ||
      listen(listener, SOMAXCONN) != 0) {
    return false;
  }
  contact_ += (contact_.empty() ? "" : " ") + address + " " +
              std::to_string(SocketAddress::port_of(listener));
  owner_.watch(listener);
  listeners_.push_back(std::move(listener));
  return true;
}

bool ControlPlane::neighbour(int peer) const {
  const int apart = ((peer - rank_) % size_ + size_) % size_;
  auto power_of_two = [](int value) { return value > 0 && (value & (value - 1)) == 0; };
  return power_of_two(apart) || power_of_two(size_ - apart);
}

void ControlPlane::start_connecting(int peer, const Listener& listener, bool second) {
  SocketAddress to(listener.address, listener.port);
  auto connection = std::make_unique<Connection>(
      Connection{to.make_socket(), Session::connecting(group_key_, rank_, peer)});
  if (connection->descriptor < 0 && second) return;
  if (connection->descriptor < 0) fail("cannot make a control connection");
  const int descriptor = connection->descriptor;
  connection->second = second;
  const bool begun =
      ::connect(descriptor, to.get(), to.length) == 0 || errno == EINPROGRESS || errno == EINTR;
  if (!begun && second) return;
  if (!begun) fail_to_connect(rank_, peer, listener.text(), errno);
  connections_.push_back(std::move(connection));
}

void ControlPlane::begin(Connection& connection) {
  set_no_delay(connection.descriptor);
  enable_keep_alive(connection.descriptor, peer_timeout_);
  outlast_outages(connection.descriptor);
  owner_.watch(connection.descriptor);
}

void ControlPlane::connect(const std::vector<Neighbour>& ranks, const std::string& group_key,
                           const Deadline& deadline) {
  group_key_ = group_key;
  std::map<int, std::vector<Listener>>& listeners = listeners_of_neighbours_;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || !neighbour(peer)) continue;
    waiting_[peer];
    std::vector<Listener>& all = listeners[peer] = listeners_of(peer, ranks[peer].contact);
    if (peer < rank_) continue;
    const auto first = std::find_if(all.begin(), all.end(), [&](const Listener& listener) {
      return listener.address == ranks[peer].first;
    });
    if (first != all.end()) std::rotate(all.begin(), first, std::next(first));
    start_connecting(peer, all.front(), false);
  }
  std::vector<Connection*> waiting;
  for (const auto& connection : connections_) waiting.push_back(connection.get());
  auto named = [&](const Connection& connection) {
    const int peer = connection.peer();
    return "rank " + std::to_string(peer) + " at " + listeners[peer].front().text();
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
      const int error = take_error(connection.descriptor);
      const int peer = connection.peer();
      if (error != 0) fail_to_connect(rank_, peer, listeners[peer].front().text(), error);
      begin(connection);
    }
    std::erase(waiting, nullptr);
  }
  for (const auto& [peer, all] : listeners) {
    if (peer < rank_) continue;
    const auto wanted = [&, &second = ranks[peer].second](const Listener& listener) {
      return listener.address == second;
    };
    const auto found = std::find_if(all.begin() + 1, all.end(), wanted);
    if (found != all.end()) start_connecting(peer, *found, true);
  }
  for (const auto& connection : connections_) {
    if (connection->second) begin(*connection);
  }
}

// Where the peer listens on the address of the other end.
Listener ControlPlane::listener_of(const Connection& connection) const {
  const std::vector<Listener>& all = listeners_of_neighbours_.at(connection.peer());
  const auto address = peer_address(connection.descriptor);
  const auto same = [&](const Listener& one) { return address && one.address == *address; };
  const auto found = std::find_if(all.begin(), all.end(), same);
  return found == all.end() ? all.front() : *found;
}

// TCP doubles the time between attempts to send again. After an outage of 0.7 s it tries again only
// 1.4 s after the beginning of the outage. A new connection tries at once.
void ControlPlane::knock(int peer) {
  const auto now = Clock::now();
  for (auto& connection : connections_) {
    if (connection->peer() != peer || !connection->proven()) continue;
    const auto wait = kKnockBound + round_trip(connection->descriptor);
    if (now - connection->knocked < wait) continue;
    const Listener listener = listener_of(*connection);
    SocketAddress to(listener.address, listener.port);
    connection->knock = to.make_socket();
    connection->knocked = now;
    if (connection->knock < 0) continue;
    const int error = ::connect(connection->knock, to.get(), to.length) == 0 ? 0 : errno;
    if (error != EINPROGRESS) end_knock(*connection, error);
  }
}

void ControlPlane::take_answer(Connection& connection) {
  pollfd answer{connection.knock, POLLOUT, 0};
  if (::poll(&answer, 1, 0) > 0) end_knock(connection, take_error(connection.knock));
}

// A refusal is a sign of life, too.
void ControlPlane::end_knock(Connection& connection, int error) {
  if (error == 0 || error == ECONNREFUSED || error == ECONNRESET) {
    connection.answered = Clock::now();
  }
  connection.knock = ProcessDescriptor();
}

int ControlPlane::strangers() const {
  return static_cast<int>(std::count_if(connections_.begin(), connections_.end(),
                                        [](const auto& one) { return one->stranger(); }));
}

// False if the oldest stranger is too young. Connections are in order of age.
bool ControlPlane::drop_oldest_stranger() {
  for (auto& connection : connections_) {
    if (!connection->stranger()) continue;
    if (Clock::now() - connection->since < kMinStrangerAge) return false;
    close(*connection);
    return true;
  }
  return false;
}

// A ready listener that cannot accept would wake the progress thread all the time. Without the
// watch the regular polls accept connections.
void ControlPlane::watch_listeners(bool on) {
  if (on == listeners_watched_) return;
  listeners_watched_ = on;
  for (int listener : listeners_) on ? owner_.watch(listener) : owner_.unwatch(listener);
}

void ControlPlane::warn_once(bool& warned, const std::string& text) {
  if (!std::exchange(warned, true)) log(LogLevel::warning, text, rank_);
}

void ControlPlane::accept_waiting() {
  bool all = true;
  for (int listener : listeners_) all &= accept_waiting(listener);
  watch_listeners(all);
}

// False if connections still wait.
bool ControlPlane::accept_waiting(int listener) {
  for (int dropped = 0; dropped <= kMaxStrangers;) {
    if (strangers() >= kMaxStrangers) {
      warn_once(warned_of_strangers_,
                std::to_string(kMaxStrangers) + " connections of strangers at control port " +
                    contact_ +
                    ": none has proven this group's key; the oldest make way for newer ones; "
                    "keep port scanners away from it");
      if (!drop_oldest_stranger()) break;
      ++dropped;
    }
    ProcessDescriptor accepted(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (accepted < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      warn_once(warned_of_descriptors_,
                "cannot accept control connections: " + std::string(std::strerror(errno)) +
                    "; tries again twice a second; raise the descriptor limit (ulimit -n)");
      if (!drop_oldest_stranger()) break;
      ++dropped;
      continue;
    }
    connections_.push_back(std::make_unique<Connection>(
        Connection{std::move(accepted), Session::accepting(group_key_, rank_)}));
    connections_.back()->out = connections_.back()->session.challenge();
    begin(*connections_.back());
  }
  return false;
}

void ControlPlane::set_proof_deadline(std::chrono::nanoseconds bound) {
  proofs_due_ = Clock::now() + std::min<std::chrono::nanoseconds>(bound, kNeighbourBound);
}

// All ranks connect before any of them polls. A neighbour without a proof long after the first poll
// is gone, or stands still.
void ControlPlane::drop_unproven() {
  const auto bound = waiting_.empty() ? kProofBound : kNeighbourBound;
  for (auto& connection : connections_) {
    if (connection->stranger() && Clock::now() - connection->since > bound) close(*connection);
  }
  if (Clock::now() < proofs_due_) return;
  for (auto& connection : connections_) {
    if (connection->open() && connection->peer() >= 0 && !connection->proven()) close(*connection);
  }
  for (const auto& [peer, records] : std::exchange(waiting_, {})) owner_.on_lost(peer);
}

}  // namespace hetcomm
