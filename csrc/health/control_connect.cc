// How control connections to neighbours begin, and knocks.

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <optional>
#include <sstream>
#include <utility>

#include "base/config.h"
#include "base/free_port_remedy.h"
#include "base/log.h"
#include "base/system_text.h"
#include "health/control.h"
#include "health/socket_address.h"

namespace hetcomm {
namespace {

// A stranger that has not proven the group's key by then is dropped. While a neighbour is missing,
// a stranger may be this neighbour, which may be slow or stopped for a while.
constexpr auto kProofBound = std::chrono::seconds(10), kNeighbourBound = std::chrono::seconds(30);
constexpr int kMostTries = 100;  // to connect to a neighbour whose strangers take all places
constexpr auto kKnockBound = std::chrono::milliseconds(100);
// For an answer of one of a neighbour's addresses, before the next one. Room for a lost packet.
constexpr auto kTurn = std::chrono::milliseconds(1500);
constexpr int kUnanswered = 3;  // peer timeouts without an answer of any address
constexpr auto kLastAnswers = std::chrono::milliseconds(200);  // of others, after a failure
constexpr auto kConnectPoll = std::chrono::milliseconds(100);
// Between two looks whether a neighbour that has not connected yet still listens.
constexpr auto kSearchTurn = std::chrono::milliseconds(300);

template <typename... Parts>
[[noreturn]] void fail(const Parts&... what) {
  const bool in_use = errno == EADDRINUSE;
  throw Error(Code::transport, system_text(what..., ": ", kReason, in_use ? "; " : "",
                                           in_use ? kFreePortRemedy : ""));
}

// A rank listens before it tells its contact. A killed rank also resets connections that it has not
// accepted.
bool refuses(int error) { return error == ECONNREFUSED || error == ECONNRESET; }

Error error_of_connect(int rank, int peer, const std::string& contact, int error) {
  const bool ended = refuses(error);
  const bool loopback = contact.starts_with("127.") || contact.starts_with("::1 ");
  std::string remedy = ended ? "its process has ended or given up, see its own log; or a firewall "
                               "rejects the port; or the address leads to another host"
                             : "check that this host reaches the address";
  remedy += loopback ? ", for the loopback reaches its own host only, and the rank's host has no "
                       "better address; see \"hetcomm topo\" there"
                     : ", choose the interface with HETCOMM_SOCKET_IFNAME";
  if (error == EADDRNOTAVAIL) remedy += std::string("; or ") + kFreePortRemedy;
  return Error(Status(ended ? Code::peer_failed : Code::transport,
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
  strangers_ready_ = ProcessDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (strangers_ready_ < 0) fail("cannot listen for control connections");
  owner_.watch(strangers_ready_);
  if (!listen_on(address)) fail("cannot listen for control connections on ", address);
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

// An attempt to connect to one neighbour, at one of its addresses after another.
struct ControlPlane::Attempt {
  int peer;
  std::vector<Listener>* listeners;  // the one under way comes first
  std::string first = listeners->front().text();
  size_t failed = 0;  // listeners so far
  int error = 0;      // of the first one, or of a later one that refused
  std::unique_ptr<Connection> connection = nullptr;
  Deadline turn{kTurn};
};

// Null with an error; null without one if this process has no descriptor.
std::unique_ptr<ControlPlane::Connection> ControlPlane::start_connecting(int peer,
                                                                         const Listener& listener,
                                                                         int& error) {
  SocketAddress to(listener.address, listener.port);
  auto connection = std::make_unique<Connection>(
      Connection{to.make_socket(), Session::connecting(group_key_, rank_, peer)});
  connection->out = connection->session.greeting();
  error = 0;
  if (connection->descriptor < 0) return nullptr;
  if (::connect(connection->descriptor, to.get(), to.length) != 0 && errno != EINPROGRESS &&
      errno != EINTR) {
    error = errno;
    return nullptr;
  }
  return connection;
}

// `error`: of the listener under way; 0 before the first one. False once all have failed.
bool ControlPlane::try_next(Attempt& attempt, int error) {
  attempt.connection.reset();
  do {
    if (error != 0) {
      if (attempt.failed++ == 0 || refuses(error)) attempt.error = error;
      if (attempt.failed >= attempt.listeners->size()) return false;
      std::rotate(attempt.listeners->begin(), std::next(attempt.listeners->begin()),
                  attempt.listeners->end());
    }
    attempt.turn = Deadline(kTurn);
    attempt.connection = start_connecting(attempt.peer, attempt.listeners->front(), error);
    if (!attempt.connection && error == 0) fail("cannot make a control connection");
  } while (!attempt.connection);
  return true;
}

// Whether a connection that has ended without a proof begins again: strangers may have taken its
// place at the other end.
bool ControlPlane::try_again(const Connection& connection) {
  if (connection.session.proven() || connection.second || connection.tries == kMostTries ||
      connection.error == ECONNREFUSED || Clock::now() >= proofs_due_) {
    return false;
  }
  int error = 0;
  auto next = start_connecting(connection.peer(),
                               listeners_of_neighbours_.at(connection.peer()).front(), error);
  if (!next) return false;
  next->tries = connection.tries + 1;
  begin(*next);
  connections_.push_back(std::move(next));
  return true;
}

void ControlPlane::begin(Connection& connection) {
  set_no_delay(connection.descriptor);
  enable_keep_alive(connection.descriptor, peer_timeout_);
  outlast_outages(connection.descriptor);
  owner_.watch(connection.descriptor);
}

void ControlPlane::connect(Ring ring, const std::vector<Neighbour>& ranks,
                           const std::string& group_key, const Deadline& deadline) {
  ring_ = std::move(ring);
  group_key_ = group_key;
  accept_waiting();  // a flood may have filled the queue
  std::vector<Attempt> attempts;
  for (int peer : ring_.neighbours(rank_)) {
    waiting_[peer];
    std::vector<Listener>& all = listeners_of_neighbours_[peer] =
        listeners_of(peer, ranks[peer].contact);
    const auto first = std::find_if(all.begin(), all.end(), [&](const Listener& listener) {
      return listener.address == ranks[peer].first;
    });
    if (first != all.end()) std::rotate(all.begin(), first, std::next(first));
    if (peer < rank_) searches_[peer];
    if (peer > rank_) attempts.push_back({peer, &all});
  }
  std::optional<Error> failure;  // of the first neighbour that cannot be reached
  Deadline bound(std::min<std::chrono::nanoseconds>(deadline.left(), kUnanswered * peer_timeout_));
  const auto go_on = [&](Attempt& attempt, int error) {
    if (try_next(attempt, error) || failure) return;
    failure = error_of_connect(rank_, attempt.peer, attempt.first, attempt.error);
    bound = Deadline(kLastAnswers);
  };
  for (Attempt& attempt : attempts) go_on(attempt, 0);
  while (std::erase_if(attempts, [](const Attempt& one) { return !one.connection; }),
         !attempts.empty() && !bound.passed()) {
    std::vector<pollfd> wanted;
    for (const Attempt& one : attempts) wanted.push_back({one.connection->descriptor, POLLOUT, 0});
    const auto wait = std::min<int64_t>(bound.left_ms().count(), kConnectPoll.count());
    if (::poll(wanted.data(), wanted.size(), static_cast<int>(wait)) < 0 && errno != EINTR) {
      fail("cannot wait for control connections");
    }
    for (size_t i = 0; i < wanted.size(); ++i) {
      Attempt& attempt = attempts[i];
      const bool more = attempt.failed + 1 < attempt.listeners->size();
      if (wanted[i].revents == 0) {
        if (more && attempt.turn.passed()) go_on(attempt, ETIMEDOUT);
      } else if (const int error = take_error(attempt.connection->descriptor); error != 0) {
        go_on(attempt, error);
      } else {
        begin(*attempt.connection);
        connections_.push_back(std::move(attempt.connection));
        write(*connections_.back());  // at once: a silent connection may have to make way
      }
    }
  }
  if (failure) throw Error(*failure);
  if (attempts.empty()) return;
  std::string names;
  for (const Attempt& one : attempts) {
    names += (names.empty() ? "rank " : ", rank ") + std::to_string(one.peer) + " at " +
             one.listeners->front().text();
  }
  throw Error(Code::timeout, names + (attempts.size() == 1 ? " does" : ": each does") +
                                 " not answer; check that this host reaches it, or choose the "
                                 "interface with HETCOMM_SOCKET_IFNAME");
}

void ControlPlane::connect_rails(const std::vector<std::vector<std::string>>& addresses) {
  for (const auto& [peer, all] : listeners_of_neighbours_) {
    for (const std::string& address : addresses[peer]) {
      const auto found = std::find_if(all.begin() + 1, all.end(), [&](const Listener& listener) {
        return listener.address == address;
      });
      if (peer < rank_ || found == all.end()) continue;
      int error = 0;
      if (auto connection = start_connecting(peer, *found, error)) {
        connection->second = true;
        begin(*connection);
        connections_.push_back(std::move(connection));
      }
      break;
    }
  }
}

// A neighbour of lower rank that ended before it connected to this rank listens no more.
void ControlPlane::seek_missing() {
  std::erase_if(searches_, [this](const auto& one) { return !waiting_.contains(one.first); });
  std::vector<int> ended;
  for (auto& [peer, search] : searches_) {
    if (listens_no_more(peer, search)) ended.push_back(peer);
  }
  for (int peer : ended) {
    searches_.erase(peer);
    waiting_.erase(peer);
    owner_.on_lost(peer);
  }
}

bool ControlPlane::listens_no_more(int peer, Search& search) {
  const auto now = Clock::now();
  std::vector<Listener>& listeners = listeners_of_neighbours_.at(peer);
  int error = ETIMEDOUT;
  if (search.knock >= 0) {
    pollfd answer{search.knock, POLLOUT, 0};
    const bool answered = ::poll(&answer, 1, 0) > 0;
    if (!answered && now - search.at < kTurn) return false;
    if (answered) error = take_error(search.knock);
  } else {
    if (now - search.at < kSearchTurn) return false;
    search.at = now;
    SocketAddress to(listeners.front().address, listeners.front().port);
    search.knock = to.make_socket();
    if (search.knock < 0) return false;
    error = ::connect(search.knock, to.get(), to.length) == 0 ? 0 : errno;
    if (error == EINPROGRESS) return false;
  }
  search.knock = ProcessDescriptor();
  search.refused = error != 0 && (search.refused || refuses(error));
  search.failed = error == 0 ? 0 : search.failed + 1;
  std::rotate(listeners.begin(), listeners.begin() + (error == 0 ? 0 : 1), listeners.end());
  const bool unanswered = now - search.begun > kUnanswered * peer_timeout_;
  return search.failed >= listeners.size() && (search.refused || unanswered);
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
  if (error == 0 || refuses(error)) {
    connection.answered = Clock::now();
  }
  connection.knock = ProcessDescriptor();
}

void ControlPlane::set_proof_deadline(std::chrono::nanoseconds bound) {
  proofs_due_ = Clock::now() + std::min<std::chrono::nanoseconds>(bound, kNeighbourBound);
}

// All ranks connect before any of them polls. A neighbour without a proof long after the first poll
// is gone, or stands still.
void ControlPlane::drop_unproven() {
  const auto bound = waiting_.empty() ? kProofBound : kNeighbourBound;
  drop_strangers(bound);
  if (Clock::now() < proofs_due_) return;
  for (auto& connection : connections_) {
    if (connection->open() && connection->peer() >= 0 && !connection->proven()) close(*connection);
  }
  for (const auto& [peer, records] : std::exchange(waiting_, {})) owner_.on_lost(peer);
}

}  // namespace hetcomm
