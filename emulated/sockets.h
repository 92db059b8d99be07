#pragma once

#include <netinet/in.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "emulated/failure.h"

namespace hetcomm::emulated {

constexpr int kGreetingTimeout = 2000;  // milliseconds for a connection's first message

// Ends waits for sockets. Thread-safe.
class Abort {
 public:
  void raise() { raised_ = true; }
  bool raised() const { return raised_; }

 private:
  std::atomic<bool> raised_ = false;
};

// Ends a wait: one of two aborts (null: none), or the time.
struct Stop {
  const Abort* abort = nullptr;
  const Abort* also = nullptr;
  std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max();

  bool raised() const {
    return (abort != nullptr && abort->raised()) || (also != nullptr && also->raised()) ||
           std::chrono::steady_clock::now() >= until;
  }
};

// A TCP socket, closed with the object. Functions throw Failure, or Aborted where they wait.
class Socket {
 public:
  explicit Socket(Descriptor descriptor = Descriptor()) : descriptor_(std::move(descriptor)) {}

  static Socket listen_at(in_addr address, int backlog);
  static Socket connect_to(const sockaddr_in& address, const Stop& stop);
  bool open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  sockaddr_in local() const;
  Socket accept(const Stop& stop) const;
  void send_all(const void* data, size_t bytes, const Stop& stop) const;
  // False if the other end closed, or nothing came for `milliseconds` (-1: no limit).
  bool receive_all(void* data, size_t bytes, const Stop& stop, int milliseconds = -1) const;

 private:
  Descriptor descriptor_;
};

bool retry();  // whether errno asks for the same call again
// Waits for any of poll()'s events for a short time, so that the caller checks its Stop in between.
void poll_briefly(std::vector<pollfd>& polled);

struct Interface {
  std::string name;
  in_addr address;
};

// The interface that NCCL_SOCKET_IFNAME names; else the first besides the loopback; else the
// loopback.
Interface choose_interface();
bool interface_named();  // NCCL_SOCKET_IFNAME is set
std::string interface_of(in_addr address);
std::string to_text(in_addr address);
// The RDMA devices under HETCOMM_SYSFS_ROOT (else /sys) that NCCL_IB_HCA allows.
std::vector<std::string> adapters();

}  // namespace hetcomm::emulated
