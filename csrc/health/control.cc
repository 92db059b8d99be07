#include "health/control.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <utility>

#include "base/config.h"
#include "base/log.h"
#include "base/packing.h"
#include "base/sha256.h"
#include "base/status.h"
#include "health/socket_address.h"

namespace hetcomm {
namespace {

constexpr uint64_t kMaxFrame = 1 << 16;
// A stranger that has not proven the group's key by then is dropped.
constexpr auto kProofBound = std::chrono::seconds(10);
// With this many strangers, one of this age is dropped for a newer connection.
constexpr auto kMinStrangerAge = std::chrono::seconds(1);
constexpr int kMaxStrangers = 64;
// A duplicate arrives only among the latest news of its origin.
constexpr uint64_t kRememberedNews = 1024;
constexpr size_t kMostWaiting = 256;   // records for a neighbour that has proven nothing yet
constexpr int kFirstRefusals = 4;      // with a warning each
constexpr uint64_t kNotForwarded = 0;  // in place of the number of flooded news
// The frame of the shortest news. Shorter input is heartbeats, which wait for the next poll().
constexpr int kShortestNews = 48 + Session::kFrameBytes;
const char* const kHeartbeat = "";  // a record without a body

[[noreturn]] void fail(const std::string& what) {
  throw Error(Code::transport, what + ": " + std::strerror(errno));
}

// A rank listens before it tells its contact.
[[noreturn]] void fail_to_connect(int rank, int peer, const std::string& contact, int error) {
  const bool refused = error == ECONNREFUSED;
  throw Error(Status(
      refused ? Code::peer_failed : Code::transport,
      "rank " + std::to_string(rank) + " on " + host_name() + " cannot connect to rank " +
          std::to_string(peer) + " at " + contact + ": " + std::strerror(error) + "; " +
          (refused ? "its process has ended or given up, see its own log; or the address leads to "
                     "another host"
                   : "check that this host reaches the address") +
          ", choose the interface with HETCOMM_SOCKET_IFNAME",
      rank, peer));
}

void set_no_delay(int descriptor) {
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

std::string record(int origin, uint64_t number, const std::string& news) {
  return Packer().put(static_cast<uint64_t>(origin)).put(number).put(news).take();
}

std::string name_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char host[NI_MAXHOST] = "";
  auto* peer = reinterpret_cast<sockaddr*>(&address);
  if (getpeername(descriptor, peer, &length) != 0 ||
      getnameinfo(peer, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) {
    return "a stranger";
  }
  return host;
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
  uint16_t port = 0;
  if (space != std::string::npos) {
    std::from_chars(contact.data() + space + 1, contact.data() + contact.size(), port);
  }
  if (port == 0) {
    throw Error(Code::invalid_argument, "rank " + std::to_string(peer) +
                                            ": expected the address and port of its control " +
                                            "connections, got \"" + contact.substr(0, 100) +
                                            "\"; run the same hetcomm version on every rank");
  }
  SocketAddress to(contact.substr(0, space), port);
  auto connection = std::make_unique<Connection>(
      Connection{to.make_socket(), Session::connecting(group_key_, rank_, peer)});
  if (connection->descriptor < 0) fail("cannot make a control connection");
  const int descriptor = connection->descriptor;
  connections_.push_back(std::move(connection));
  if (::connect(descriptor, to.get(), to.length) == 0) return;
  if (errno != EINPROGRESS && errno != EINTR) fail_to_connect(rank_, peer, contact, errno);
}

void ControlPlane::begin(Connection& connection) {
  set_no_delay(connection.descriptor);
  enable_keep_alive(connection.descriptor, bound_);
  owner_.watch(connection.descriptor);
}

void ControlPlane::connect(const std::vector<std::string>& contacts, const std::string& group_key,
                           const Deadline& deadline) {
  group_key_ = group_key;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || !neighbour(peer)) continue;
    waiting_[peer];
    if (peer > rank_) start_connecting(peer, contacts[peer]);
  }
  std::vector<Connection*> waiting;
  for (const auto& connection : connections_) waiting.push_back(connection.get());
  auto named = [&](const Connection& connection) {
    return "rank " + std::to_string(connection.peer()) + " at " + contacts[connection.peer()];
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
      if (error != 0) fail_to_connect(rank_, peer, contacts[peer], error);
      begin(connection);
    }
    std::erase(waiting, nullptr);
  }
}

void ControlPlane::flood(const std::string& news) {
  seen_[rank_].insert(++flooded_);
  forward(rank_, flooded_, news, nullptr);
}

void ControlPlane::tell(int peer, const std::string& news) {
  const std::string told = record(rank_, kNotForwarded, news);
  if (const auto found = waiting_.find(peer); found != waiting_.end()) wait(found->second, told);
  for (auto& connection : connections_) {
    if (connection->peer() != peer || !connection->proven()) continue;
    return send(*connection, told);
  }
}

void ControlPlane::forward(int origin, uint64_t number, const std::string& news,
                           const Connection* except) {
  const std::string forwarded = record(origin, number, news);
  for (auto& [peer, records] : waiting_) wait(records, forwarded);
  for (auto& connection : connections_) {
    if (connection.get() != except && connection->proven()) send(*connection, forwarded);
  }
}

void ControlPlane::wait(std::vector<std::string>& records, const std::string& record) {
  if (records.size() < kMostWaiting) records.push_back(record);
}

void ControlPlane::send(Connection& connection, const std::string& record) {
  connection.out += connection.session.seal(record);
  write(connection);
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
                    ": none has proven this group's key; the oldest make way for newer ones; "
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
    enable_keep_alive(descriptor, bound_);
    connections_.push_back(std::make_unique<Connection>(
        Connection{std::move(accepted), Session::accepting(group_key_, rank_)}));
    connections_.back()->out = connections_.back()->session.challenge();
    owner_.watch(descriptor);
  }
  watch_listener(false);
}

void ControlPlane::poll() {
  accept_waiting();
  for (size_t i = 0; i < connections_.size(); ++i) {
    Connection& connection = *connections_[i];
    if (connection.open()) write(connection);
    if (connection.open()) read(connection);
    if (connection.stranger() && Clock::now() - connection.since > kProofBound) close(connection);
  }
  give_up_unproven();
  std::erase_if(connections_, [](const auto& one) { return !one->open(); });
}

void ControlPlane::beat() {
  for (auto& connection : connections_) {
    // What waits to be sent is a sign of life, too.
    if (connection->proven() && connection->out.empty()) send(*connection, kHeartbeat);
  }
}

std::vector<ControlPlane::Silence> ControlPlane::silences() const {
  std::vector<Silence> found;
  const auto now = Clock::now();
  for (const auto& connection : connections_) {
    if (!connection->proven()) continue;
    const auto process = now - connection->heard;
    found.push_back({connection->peer(), silence_of_host(connection->descriptor),
                     std::chrono::duration_cast<std::chrono::milliseconds>(process)});
  }
  return found;
}

// All ranks connect before any of them polls. A neighbour without a proof long after the first poll
// is gone, or stands still.
void ControlPlane::give_up_unproven() {
  if (waiting_.empty()) return;
  if (proofs_due_ == Clock::time_point()) proofs_due_ = Clock::now() + kProofBound;
  if (Clock::now() < proofs_due_) return;
  for (auto& connection : connections_) {
    if (connection->open() && connection->peer() >= 0 && !connection->proven()) close(*connection);
  }
  for (const auto& [peer, records] : std::exchange(waiting_, {})) owner_.on_lost(peer);
}

std::vector<pollfd> ControlPlane::pending_output() const {
  std::vector<pollfd> pending;
  for (const auto& connection : connections_) {
    if (!connection->proven() || connection->out.empty()) continue;
    pending.push_back({connection->descriptor, POLLOUT, 0});
  }
  const bool waits = std::any_of(waiting_.begin(), waiting_.end(),
                                 [](const auto& one) { return !one.second.empty(); });
  if (!waits || listener_ < 0) return pending;
  pending.push_back({listener_, POLLIN, 0});
  for (const auto& connection : connections_) {
    if (!connection->open() || connection->proven()) continue;
    pending.push_back({connection->descriptor, POLLIN, 0});
  }
  return pending;
}

bool ControlPlane::delivered() const {
  return std::all_of(waiting_.begin(), waiting_.end(),
                     [](const auto& one) { return one.second.empty(); }) &&
         std::all_of(connections_.begin(), connections_.end(), [](const auto& one) {
           return !one->proven() || (one->out.empty() && hetcomm::delivered(one->descriptor));
         });
}

void ControlPlane::write(Connection& connection) {
  while (!connection.out.empty()) {
    const ssize_t sent = ::send(connection.descriptor, connection.out.data(), connection.out.size(),
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0 && errno != EAGAIN && errno != EWOULDBLOCK) connection.out.clear();
    if (sent <= 0) return;  // an error is noticed when reading
    connection.out.erase(0, static_cast<size_t>(sent));
  }
}

void ControlPlane::read(Connection& connection) {
  char bytes[4096];
  bool ended = false;
  const size_t limit = connection.session.proven() ? 2 * kMaxFrame : connection.session.awaited();
  while (connection.in.size() < limit) {  // the rest at the next poll
    const ssize_t got = recv(connection.descriptor, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got > 0) {
      connection.in.append(bytes, static_cast<size_t>(got));
      continue;
    }
    ended = got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
    break;
  }
  try {
    while (advance(connection)) {
    }
  } catch (const Error& error) {
    refuse(connection, error.what());
    ended = true;
  }
  if (ended) return close(connection);
  acknowledge_at_once(connection.descriptor);
  choose_wake_up(connection);
}

// The rest of a record that has arrived in part wakes this process, however short it is.
void ControlPlane::choose_wake_up(Connection& connection) {
  const bool news = connection.proven() && connection.in.empty();
  if (connection.wakes_for_news == news) return;
  connection.wakes_for_news = news;
  wake_after(connection.descriptor, news ? kShortestNews : 1);
}

void ControlPlane::refuse(const Connection& connection, const std::string& why) {
  if (connection.peer() >= 0) return owner_.on_malformed(connection.peer(), why);
  // A flood of strangers would fill the log: the first few, then ever fewer.
  if (++refused_ > kFirstRefusals && (refused_ & (refused_ - 1)) != 0) return;
  log(LogLevel::warning,
      "control connection of " + name_of(connection.descriptor) + " refused, the " +
          std::to_string(refused_) + ". one: " + why,
      rank_);
}

// The next step of the proof, or the next record. False without all its bytes.
bool ControlPlane::advance(Connection& connection) {
  if (connection.session.proven()) return handle_record(connection);
  const size_t awaited = connection.session.awaited();
  if (connection.in.size() < awaited) return false;
  connection.out += connection.session.advance(connection.in.substr(0, awaited), size_);
  connection.in.erase(0, awaited);
  if (connection.session.proven()) {
    connection.heard = Clock::now();
    if (const auto held = waiting_.extract(connection.peer())) {
      for (const std::string& record : held.mapped())
        connection.out += connection.session.seal(record);
    }
  }
  write(connection);
  return true;
}

bool ControlPlane::handle_record(Connection& connection) {
  if (connection.in.size() < sizeof(uint64_t)) return false;
  const uint64_t length = Unpacker(connection.in).number();
  if (length > kMaxFrame) {
    throw Error(Code::invalid_argument, "expected a record of at most " +
                                            std::to_string(kMaxFrame) + " bytes, got " +
                                            std::to_string(length));
  }
  if (connection.in.size() < length + Session::kFrameBytes) return false;
  const std::string body = connection.in.substr(sizeof length, length);
  connection.session.check(body, connection.in.substr(sizeof length + length, kDigestBytes));
  connection.in.erase(0, length + Session::kFrameBytes);
  const bool heartbeat = body == kHeartbeat;
  connection.heard = Clock::now();
  if (!heartbeat) handle(connection, body);
  return true;
}

void ControlPlane::handle(Connection& connection, const std::string& body) {
  Unpacker unpack(body);
  const uint64_t origin = unpack.number(), number = unpack.number();
  const std::string news = unpack.text();
  if (origin >= static_cast<uint64_t>(size_)) {
    throw Error(Code::invalid_argument, "expected news from a rank below " + std::to_string(size_) +
                                            ", got rank " + std::to_string(origin));
  }
  if (number == kNotForwarded) {
    if (static_cast<int>(origin) != connection.peer()) {
      throw Error(Code::invalid_argument, "expected news of rank " +
                                              std::to_string(connection.peer()) + ", got rank " +
                                              std::to_string(origin));
    }
    return owner_.on_news(connection.peer(), connection.peer(), news);
  }
  std::set<uint64_t>& seen = seen_[static_cast<int>(origin)];
  if (!seen.insert(number).second) return;
  if (seen.size() > kRememberedNews) seen.erase(seen.begin());
  // Throws on a malformed record.
  owner_.on_news(static_cast<int>(origin), connection.peer(), news);
  forward(static_cast<int>(origin), number, news, &connection);
}

void ControlPlane::close(Connection& connection) {
  release(connection.descriptor);
  if (connection.peer() < 0) return;
  waiting_.erase(connection.peer());
  owner_.on_lost(connection.peer());
}

}  // namespace hetcomm
