#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/process_descriptor.h"

namespace hetcomm {

// The control connections of one group: TCP to the ranks 1, 2, 4, ... away. News floods to all
// ranks in a logarithmic number of hops, whichever ranks fail. A connection must show the group's
// secret. Until then it is a stranger; strangers are bounded in number, time and bytes. Not
// thread-safe; only connect() blocks.
class ControlPlane {
 public:
  // The owner learns of events by these calls.
  class Owner {
   public:
    virtual void on_lost(int peer) = 0;  // a connection ended
    // Flooded or told by `origin`. Throws Error on a malformed record, and the record is not
    // forwarded.
    virtual void on_news(int origin, const std::string& news) = 0;
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

  // The listener's address and port: "198.18.0.1 40123".
  const std::string& contact() const { return contact_; }
  // Connects to all neighbours of higher rank at the same time; `contacts` in rank order. Throws
  // Error(transport), or Error(timeout) with the names of all that do not answer.
  void connect(const std::vector<std::string>& contacts, const std::string& secret,
               const Deadline& deadline);
  // Sends news to all ranks.
  void flood(const std::string& news);
  // Sends news to a neighbour, which does not forward them. False if the neighbour has not
  // connected yet.
  bool tell(int peer, const std::string& news);
  // Accepts, reads, forwards and writes, without waiting.
  void poll();
  // The descriptors of connections with pending output.
  std::vector<int> pending_output() const;
  // Closes all connections; the object does nothing afterwards.
  void close();

 private:
  struct Connection {
    ProcessDescriptor descriptor;
    int peer = -1;  // -1 until it has shown the secret
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
  static uint64_t max_record(const Connection& connection);  // bytes
  void write(Connection& connection);
  void handle(Connection& connection, const std::string& frame);
  void forward(int origin, uint64_t number, const std::string& news, const Connection* except);
  void close(Connection& connection);
  void release(ProcessDescriptor& descriptor);

  int rank_, size_;
  Owner& owner_;
  ProcessDescriptor listener_;
  bool listener_watched_ = true;
  bool warned_of_strangers_ = false, warned_of_descriptors_ = false;
  std::string contact_, secret_;
  std::vector<std::unique_ptr<Connection>> connections_;
  uint64_t flooded_ = 0;
  std::map<int, std::set<uint64_t>> seen_;  // by origin: the numbers of its news that arrived
};

}  // namespace hetcomm
