#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/descriptor.h"

namespace hetcomm {

// The control connections of one group: TCP to the ranks 1, 2, 4, ... away. News floods to all
// ranks in a logarithmic number of hops, whichever ranks fail. A connection must show the group's
// secret. Until then it is a stranger; strangers are bounded in number, time and bytes. Not
// thread-safe; nothing here blocks except connect().
class ControlPlane {
 public:
  struct Events {
    std::function<void(int peer)> lost;  // a connection ended
    // Flooded by `origin`. Throws Error on a malformed record, and the record is not forwarded.
    std::function<void(int origin, const std::string& news)> news;
    // `peer` sent a malformed record; its connection ends next.
    std::function<void(int peer, const std::string& why)> malformed;
  };

  // Listens on `address`, an IP address of this host. Calls `watch` with every descriptor to poll,
  // and `unwatch` before it closes one.
  ControlPlane(int rank, int size, const std::string& address, Events events,
               std::function<void(int)> watch, std::function<void(int)> unwatch);
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;

  // The listener's address and port: "198.18.0.1 40123".
  const std::string& contact() const { return contact_; }
  // Connects to all neighbours of higher rank at the same time; `contacts` in rank order. Throws
  // Error(transport), or Error(timeout) with the names of all that do not answer.
  void connect(const std::vector<std::string>& contacts, const std::string& secret,
               const Deadline& deadline);
  // Sends news to all ranks.
  void flood(const std::string& news);
  // Accepts, reads, forwards and writes what it can without waiting.
  void poll();
  // The descriptors of connections with pending output.
  std::vector<int> pending_output() const;
  // Closes everything; the object does nothing afterwards.
  void close();

 private:
  struct Connection {
    Descriptor descriptor;
    int peer = -1;  // unknown until it has shown the secret
    bool authenticated = false;
    std::string in, out;
    Clock::time_point since = Clock::now();
  };

  bool neighbour(int peer) const;
  void start_connecting(int peer, const std::string& contact);
  void introduce(Connection& connection);
  void accept_waiting();
  int strangers() const;
  bool drop_oldest_stranger();
  void watch_listener(bool on);
  void warn_once(bool& warned, const std::string& text);
  void read(Connection& connection);
  bool handle_record(Connection& connection);
  static uint64_t max_record(const Connection& connection);  // in bytes
  void write(Connection& connection);
  void handle(Connection& connection, const std::string& frame);
  void forward(int origin, uint64_t number, const std::string& news, const Connection* except);
  void close(Connection& connection);
  void release(Descriptor& descriptor);

  int rank_, size_;
  Events events_;
  std::function<void(int)> watch_, unwatch_;
  Descriptor listener_;
  bool listener_watched_ = true;
  bool warned_of_strangers_ = false, warned_of_descriptors_ = false;
  std::string contact_, secret_;
  std::vector<std::unique_ptr<Connection>> connections_;
  uint64_t flooded_ = 0;
  std::map<int, std::set<uint64_t>> seen_;  // by origin: the numbers of its news that arrived
};

}  // namespace hetcomm
