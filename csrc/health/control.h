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

// The control connections of one communicator: TCP to the ranks 1, 2, 4, ... away, so that news
// floods to everybody in a logarithmic number of hops, whoever fails. Connections are accepted only
// from holders of the communicator's secret; strangers are bounded in number, time and bytes. Not
// thread-safe; nothing here blocks except connect().
class ControlPlane {
 public:
  struct Events {
    std::function<void(int peer)> lost;  // a connection ended
    // Flooded by `origin`. Throws Error on a malformed record, which is then not passed on.
    std::function<void(int origin, const std::string& news)> news;
    // `peer` has sent one; its connection ends next.
    std::function<void(int peer, const std::string& why)> malformed;
  };

  // Listens on `address` (an IP address of this host). `watch` is told every descriptor to poll,
  // `unwatch` every one before it is closed.
  ControlPlane(int rank, int size, const std::string& address, Events events,
               std::function<void(int)> watch, std::function<void(int)> unwatch);
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;

  // "198.18.0.1 40123": what the others need to connect.
  const std::string& contact() const { return contact_; }
  // Connects to the neighbours of higher rank, to all at once; `contacts` in rank order. Throws
  // Error(transport), or Error(timeout) naming all that do not answer.
  void connect(const std::vector<std::string>& contacts, const std::string& secret,
               const Deadline& deadline);
  // Tells everybody.
  void flood(const std::string& news);
  // Accepts, reads, forwards and writes what it can without waiting.
  void poll();
  // The connections that still have something to write.
  std::vector<int> unwritten() const;
  // Closes everything; the object does nothing afterwards.
  void close();

 private:
  struct Connection {
    Descriptor descriptor;
    int peer = -1;  // unknown until the other side has shown the secret
    bool introduced = false;
    std::string in, out;
    Clock::time_point since = Clock::now();
  };

  bool neighbour(int peer) const;
  void begin_connecting(int peer, const std::string& contact);
  void introduce(Connection& connection);
  void accept_waiting();
  int strangers() const;
  bool part_with_a_stranger();
  void listen_again(bool on);
  void warn_once(bool& warned, const std::string& text);
  void read(Connection& connection);
  bool take_record(Connection& connection);
  static uint64_t longest(const Connection& connection);  // record that it may send, in bytes
  void write(Connection& connection);
  void handle(Connection& connection, const std::string& frame);
  void forward(int origin, uint64_t number, const std::string& news, const Connection* except);
  void close(Connection& connection);
  void release(Descriptor& descriptor);

  int rank_, size_;
  Events events_;
  std::function<void(int)> watch_, unwatch_;
  Descriptor listener_;
  bool listening_ = true;  // the listener is watched
  bool warned_of_strangers_ = false, warned_of_descriptors_ = false;
  std::string contact_, secret_;
  std::vector<std::unique_ptr<Connection>> connections_;
  uint64_t flooded_ = 0;
  std::map<int, std::set<uint64_t>> seen_;  // by origin: the numbers of its news that arrived
};

}  // namespace hetcomm
