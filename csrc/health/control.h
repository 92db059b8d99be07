#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/process_descriptor.h"
#include "health/ring.h"
#include "health/session.h"
#include "health/tcp_state.h"

namespace hetcomm {

// Where a rank accepts control connections.
struct Listener {
  std::string address;
  uint16_t port = 0;

  std::string text() const { return address + " " + std::to_string(port); }
};

// The control connections of one group: TCP to the neighbours in the ring of ranks. News floods to
// all ranks in a logarithmic number of hops. A neighbour with which this rank
// shares several rails has a second connection over another rail, and all news takes both, so
// neither NIC matters alone. A neighbour that reads nothing gets no news beyond a bound. Both ends
// of a connection prove the group's key (session.h). Until then an accepted connection is a
// stranger; strangers are bounded in number, time and bytes. The oldest makes way for a new
// connection, so the connecting end tries again. A neighbour of lower rank connects to this rank;
// until it does, this rank tries now and then whether the neighbour still listens. Not thread-safe;
// only connect() blocks.
class ControlPlane {
 public:
  // The owner learns of events by these calls.
  class Owner {
   public:
    virtual void on_lost(int peer) = 0;  // the last connection to the peer ended
    // Flooded by `origin`, or told by this neighbour, and received from the neighbour `from`.
    // Throws Error on a malformed record, and the record is not forwarded.
    virtual void on_news(int origin, int from, bool flooded, const std::string& news) = 0;
    // `peer` sent a malformed record; its connection ends next.
    virtual void on_malformed(int peer, const std::string& why) = 0;
    virtual void watch(int descriptor) = 0;    // poll() must follow what it has to read
    virtual void unwatch(int descriptor) = 0;  // the descriptor is about to close

   protected:
    ~Owner() = default;
  };

  // Listens on `address`, an IP address of this host.
  ControlPlane(int rank, int size, const std::string& address, Owner& owner);
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;

  // Listens on another address of this host, too. Without effect if that fails. Comes before
  // contact().
  void listen_at(const std::string& address);
  // The addresses and ports of the listeners, the first one first: "198.18.0.1 40123".
  const std::string& contact() const { return contact_; }
  // How to reach a rank.
  struct Neighbour {
    std::string contact;
    std::string first = {};  // the first address to try; empty: the first one of the contact
  };
  // Connects to all neighbours of higher rank at the same time, at the first of their addresses
  // that answers; `ranks` in rank order. The proofs follow in poll(); news waits for them. Throws
  // Error(transport), Error(peer_failed) if a rank refuses at all addresses, or Error(timeout) with
  // the names of all that do not answer within three times the peer timeout.
  void connect(Ring ring, const std::vector<Neighbour>& ranks, const std::string& group_key,
               const Deadline& deadline);
  const Ring& ring() const { return ring_; }  // of connect()
  // Begins a second connection to each neighbour of higher rank, at the first of these addresses
  // without a first connection. It follows in poll(), and may fail. `addresses`: in rank order.
  void connect_rails(const std::vector<std::vector<std::string>>& addresses);
  // poll() gives up neighbours without a proof after `bound`, at most 30 s from now.
  void set_proof_deadline(std::chrono::nanoseconds bound);
  // Every neighbour has proven the group's key, or is given up.
  bool proven() const { return waiting_.empty(); }
  // Sends news to all ranks.
  void flood(const std::string& news);
  // Sends news to a neighbour, which does not forward the news.
  void tell(int peer, const std::string& news);
  // Accepts, reads, forwards and writes, without waiting.
  void poll();
  // Sends neighbours a heartbeat, which does not wake their processes. A process that has long been
  // silent reads none, so it gets ever fewer: they never fill its kernel's buffer.
  void beat();
  // How long a neighbour has given no sign of life over any of its connections. A host that sends
  // and acknowledges nothing gives none: it does not get what this rank sends.
  struct Silence {
    int peer;
    std::chrono::milliseconds host, process;
  };
  std::vector<Silence> silences() const;
  // Opens a new connection to the host of a silent neighbour. TCP sends at once on a new
  // connection, while its retransmission on the old one backs off. poll() takes the answer, a sign
  // of life. After 0.1 s and a round trip without an answer, the next knock replaces this one.
  void knock(int peer);
  // The connections to neighbours that lack news, and what they wait for.
  std::vector<pollfd> pending_output() const;
  // The hosts of all neighbours have everything that was sent.
  bool delivered() const;
  // Closes all connections; the object does nothing afterwards.
  void close();

 private:
  struct Connection {
    ProcessDescriptor descriptor;
    Session session;
    std::string in, out;
    Clock::time_point since = Clock::now();
    Clock::time_point heard{};   // the last record, once proven
    Clock::time_point beaten{};  // the last heartbeat to it
    ProcessDescriptor knock{};   // a connection that the peer's host has not answered yet
    Clock::time_point knocked{}, answered{};
    int64_t sent = 0, acknowledged = 0;  // bytes
    // The peer's host acknowledged more, or all.
    Clock::time_point progressed = Clock::now();
    bool wakes_for_news = false;  // but not for heartbeats
    bool second = false;          // a second connection made here, which may fail
    uint64_t number = 0;          // of a stranger
    int tries = 1;                // of this end to connect
    int error = 0;                // that ended it

    int peer() const { return session.peer(); }  // -1: a stranger
    bool open() const { return descriptor >= 0; }
    bool proven() const { return open() && session.proven(); }
    bool stranger() const { return open() && peer() < 0; }  // accepted, without a proof
  };

  // control_connect.cc
  bool listen_on(const std::string& address);
  using Strangers = std::map<uint64_t, std::unique_ptr<Connection>>;  // the oldest first
  struct Attempt;
  std::unique_ptr<Connection> start_connecting(int peer, const Listener& listener, int& error);
  bool try_next(Attempt& attempt, int error);
  bool try_again(const Connection& connection);
  void seek_missing();
  void begin(Connection& connection);
  Listener listener_of(const Connection& connection) const;
  static void take_answer(Connection& connection);
  static void end_knock(Connection& connection, int error);
  void drop_unproven();
  // control_strangers.cc
  void accept_waiting();
  bool accept_waiting(int listener);
  void hear_strangers();
  void hear(Connection& stranger);
  bool make_way();
  void adopt(Connection& stranger);
  void drop(Connection& stranger);
  void drop_strangers(std::chrono::nanoseconds age);
  void watch_listeners(bool on);
  void warn_once(bool& warned, const std::string& text);
  // control.cc
  void read(Connection& connection);
  void choose_wake_up(Connection& connection);
  bool advance(Connection& connection);
  bool handle_record(Connection& connection);
  void refuse(const Connection& connection, const std::string& why);
  void write(Connection& connection);
  void send(Connection& connection, const std::string& record);
  static void wait(std::vector<std::string>& records, const std::string& record);
  void handle(Connection& connection, const std::string& record);
  void forward(int origin, uint64_t number, const std::string& news, const Connection* except);
  void close(Connection& connection);
  bool otherwise_connected(const Connection& connection) const;
  bool fresh(int origin, uint64_t number);
  void release(ProcessDescriptor& descriptor);

  int rank_, size_;
  Ring ring_;
  Owner& owner_;
  const std::chrono::seconds peer_timeout_ = peer_timeout();
  std::vector<ProcessDescriptor> listeners_;
  bool listeners_watched_ = true;
  bool warned_of_strangers_ = false, warned_of_descriptors_ = false, warned_of_watches_ = false;
  int refused_ = 0;  // connections of strangers
  std::string contact_, group_key_;
  std::map<int, std::vector<Listener>> listeners_of_neighbours_;  // the first one is in use
  // A try whether a neighbour still listens, which has not connected yet.
  struct Search {
    size_t failed = 0;     // tries in a row, each at the next address
    bool refused = false;  // one of them
    ProcessDescriptor knock{};
    Clock::time_point at = Clock::now(), begun = at;
  };
  bool listens_no_more(int peer, Search& search);
  std::map<int, Search> searches_;
  std::vector<std::unique_ptr<Connection>> connections_;
  // Connections of strangers, by whether a greeting has come. The epoll has those with input.
  Strangers silent_, greeted_;
  ProcessDescriptor strangers_ready_;
  bool unwatched_strangers_ = false;  // some are not in the epoll, for want of watches
  uint64_t strangers_ = 0;            // so far
  std::map<int, std::vector<std::string>>
      waiting_;  // records for neighbours that proved nothing yet
  Clock::time_point proofs_due_ = Clock::time_point::max();
  uint64_t flooded_ = 0, told_ = 0;
  // By origin: the numbers of its news that arrived, flooded and told.
  std::map<int, std::set<uint64_t>> seen_, told_seen_;
};

}  // namespace hetcomm
