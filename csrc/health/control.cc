// Records over control connections: news, heartbeats and proofs.

#include "health/control.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/packing.h"
#include "base/sha256.h"
#include "base/status.h"
#include "health/socket_address.h"

namespace hetcomm {
namespace {

constexpr uint64_t kMaxFrame = 1 << 16;
// A duplicate arrives only among the latest news of its origin.
constexpr uint64_t kRememberedNews = 1024;
constexpr size_t kMostWaiting = 256;  // records for a neighbour that has proven nothing yet
// A neighbour that reads nothing gets no further news beyond so many bytes. The first of the news
// has the cause of a failure.
constexpr size_t kMostUnsent = 1 << 20;
constexpr int kFirstRefusals = 4;  // with a warning each
// After a silence the next heartbeat comes within this part of the silence: some 600 in a day.
constexpr int kBeatsInSilence = 64;
constexpr uint64_t kNotForwarded = uint64_t{1} << 63;  // in the number of news
// The shortest news has 48 bytes: origin, number, length, and a silence's three numbers. Shorter
// input is heartbeats, which wait for the next poll().
constexpr int kShortestNews = 48 + Session::kFrameBytes;
const char* const kHeartbeat = "";  // a record without a body

std::string record(int origin, uint64_t number, const std::string& news) {
  return Packer().put(static_cast<uint64_t>(origin)).put(number).put(news).take();
}

}  // namespace

ControlPlane::~ControlPlane() { close(); }

void ControlPlane::close() {
  for (auto& connection : connections_) release(connection->descriptor);
  connections_.clear();
  searches_.clear();
  drop_strangers(std::chrono::nanoseconds(-1));
  release(strangers_ready_);
  for (ProcessDescriptor& listener : listeners_) release(listener);
}

void ControlPlane::release(ProcessDescriptor& descriptor) {
  if (descriptor < 0) return;
  owner_.unwatch(descriptor);
  descriptor = ProcessDescriptor();
}

void ControlPlane::flood(const std::string& news) {
  seen_[rank_].insert(++flooded_);
  forward(rank_, flooded_, news, nullptr);
}

void ControlPlane::tell(int peer, const std::string& news) {
  const std::string told = record(rank_, kNotForwarded | ++told_, news);
  if (const auto found = waiting_.find(peer); found != waiting_.end()) wait(found->second, told);
  for (auto& connection : connections_) {
    if (connection->peer() == peer && connection->proven()) send(*connection, told);
  }
}

void ControlPlane::forward(int origin, uint64_t number, const std::string& news,
                           const Connection* except) {
  const std::string forwarded = record(origin, number, news);
  for (auto& [peer, records] : waiting_) wait(records, forwarded);
  for (auto& connection : connections_) {
    const bool sender = except != nullptr && connection->peer() == except->peer();
    if (!sender && connection->proven()) send(*connection, forwarded);
  }
}

void ControlPlane::wait(std::vector<std::string>& records, const std::string& record) {
  if (records.size() < kMostWaiting) records.push_back(record);
}

void ControlPlane::send(Connection& connection, const std::string& record) {
  if (connection.out.size() > kMostUnsent) return;
  connection.out += connection.session.seal(record);
  write(connection);
}

void ControlPlane::poll() {
  accept_waiting();
  hear_strangers();
  const auto now = Clock::now();
  for (size_t i = 0; i < connections_.size(); ++i) {
    Connection& connection = *connections_[i];
    const int64_t acknowledged = connection.sent - unacknowledged(connection.descriptor);
    if (acknowledged == connection.sent || acknowledged > connection.acknowledged) {
      connection.progressed = now;
    }
    connection.acknowledged = acknowledged;
    if (connection.open()) write(connection);
    if (connection.open()) read(connection);
    if (connection.knock >= 0) take_answer(connection);
  }
  seek_missing();
  drop_unproven();
  std::erase_if(connections_, [](const auto& one) { return !one->open(); });
}

void ControlPlane::beat() {
  const auto now = Clock::now();
  for (auto& connection : connections_) {
    // What waits to be sent is a sign of life, too.
    if (!connection->proven() || !connection->out.empty()) continue;
    if (now - connection->beaten < (now - connection->heard) / kBeatsInSilence) continue;
    connection->beaten = now;
    send(*connection, kHeartbeat);
  }
}

std::vector<ControlPlane::Silence> ControlPlane::silences() const {
  std::map<int, Silence> by_peer;
  const auto since = [now = Clock::now()](Clock::time_point then) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(now - then);
  };
  for (const auto& connection : connections_) {
    if (!connection->proven()) continue;
    const auto unheard = silence_of_host(connection->descriptor);
    auto host = std::max(unheard, since(connection->progressed));
    // A firewall may answer for a host that is gone. TCP sends again within twice an outage.
    if (unheard < 3 * peer_timeout_) host = std::min(host, since(connection->answered));
    const auto process = since(connection->heard);
    const auto [found, first] = by_peer.try_emplace(connection->peer());
    Silence& silence = found->second;
    silence = {connection->peer(), first ? host : std::min(host, silence.host),
               first ? process : std::min(process, silence.process)};
  }
  std::vector<Silence> found;
  for (const auto& [peer, silence] : by_peer) found.push_back(silence);
  return found;
}

std::vector<pollfd> ControlPlane::pending_output() const {
  std::vector<pollfd> pending;
  std::set<int> told;
  for (const auto& connection : connections_) {
    if (connection->proven() && connection->out.empty()) told.insert(connection->peer());
  }
  for (const auto& connection : connections_) {
    if (!connection->proven() || told.contains(connection->peer())) continue;
    pending.push_back({connection->descriptor, POLLOUT, 0});
  }
  const bool waits = std::any_of(waiting_.begin(), waiting_.end(),
                                 [](const auto& one) { return !one.second.empty(); });
  if (!waits) return pending;
  if (strangers_ready_ >= 0) pending.push_back({strangers_ready_, POLLIN, 0});
  for (const ProcessDescriptor& listener : listeners_) {
    if (listener >= 0) pending.push_back({listener, POLLIN, 0});
  }
  for (const auto& connection : connections_) {
    if (!connection->open() || connection->proven()) continue;
    pending.push_back({connection->descriptor, POLLIN, 0});
  }
  return pending;
}

bool ControlPlane::delivered() const {
  std::map<int, bool> by_peer;
  for (const auto& [peer, records] : waiting_) by_peer[peer] = records.empty();
  for (const auto& one : connections_) {
    if (one->proven())
      by_peer[one->peer()] |= one->out.empty() && unacknowledged(one->descriptor) == 0;
  }
  return std::all_of(by_peer.begin(), by_peer.end(), [](const auto& one) { return one.second; });
}

void ControlPlane::write(Connection& connection) {
  while (!connection.out.empty()) {
    const ssize_t sent = ::send(connection.descriptor, connection.out.data(), connection.out.size(),
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0 && errno != EAGAIN && errno != EWOULDBLOCK) connection.out.clear();
    if (sent <= 0) return;  // an error is noticed when reading
    connection.out.erase(0, static_cast<size_t>(sent));
    connection.sent += sent;
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
    connection.error = got < 0 ? errno : 0;
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
  if (ended) return connection.stranger() ? drop(connection) : close(connection);
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
  // The address of a second connection may lead to a stranger.
  const bool known = connection.peer() >= 0 && (!connection.second || connection.proven());
  if (known) return owner_.on_malformed(connection.peer(), why);
  // A flood of strangers would fill the log: the first few, then ever fewer.
  if (++refused_ > kFirstRefusals && (refused_ & (refused_ - 1)) != 0) return;
  log(LogLevel::warning,
      "control connection of " + peer_address(connection.descriptor).value_or("a stranger") +
          " refused, the " + std::to_string(refused_) + ". one: " + why,
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
    if (connection.number > 0) adopt(connection);
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
  const bool flooded = (number & kNotForwarded) == 0;
  if (!flooded && static_cast<int>(origin) != connection.peer()) {
    throw Error(Code::invalid_argument, "expected news of rank " +
                                            std::to_string(connection.peer()) + ", got rank " +
                                            std::to_string(origin));
  }
  if (!fresh(static_cast<int>(origin), number)) return;
  // Throws on a malformed record.
  owner_.on_news(static_cast<int>(origin), connection.peer(), flooded, news);
  if (flooded) forward(static_cast<int>(origin), number, news, &connection);
}

// The news has not come over another connection.
bool ControlPlane::fresh(int origin, uint64_t number) {
  auto& seen = (number & kNotForwarded) == 0 ? seen_ : told_seen_;
  std::set<uint64_t>& numbers = seen[origin];
  const bool forgotten = numbers.size() == kRememberedNews && number < *numbers.begin();
  if (forgotten || !numbers.insert(number).second) return false;
  if (numbers.size() > kRememberedNews) numbers.erase(numbers.begin());
  return true;
}

void ControlPlane::close(Connection& connection) {
  release(connection.descriptor);
  if (otherwise_connected(connection) || try_again(connection)) return;
  waiting_.erase(connection.peer());
  owner_.on_lost(connection.peer());
}

// Another connection to this peer lives, or may yet begin.
bool ControlPlane::otherwise_connected(const Connection& connection) const {
  return std::any_of(connections_.begin(), connections_.end(), [&](const auto& other) {
    if (other.get() == &connection || other->peer() != connection.peer()) return false;
    return other->proven() ? silence_of_host(other->descriptor) < peer_timeout_
                           : other->open() && !other->second;
  });
}

}  // namespace hetcomm
