#pragma once

#include <netinet/in.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "emulated/failure.h"

namespace hetcomm::emulated {

// Ends waits for sockets. Thread-safe.
class Abort {
 public:
  void raise() { raised_ = true; }
  bool raised() const { return raised_; }

 private:
  std::atomic<bool> raised_ = false;
};

// What ends a wait: either abort (null: none), or the time.
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
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = -1; }
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  static Socket listen_at(in_addr address, int backlog);
  static Socket connect_to(const sockaddr_in& address, const Stop& stop);
  bool open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  sockaddr_in local() const;
  Socket accept(const Stop& stop) const;
  void send_all(const void* data, size_t bytes, const Stop& stop) const;
  // False where the other end closed, or nothing came for `milliseconds` (-1: no limit).
  bool receive_all(void* data, size_t bytes, const Stop& stop, int milliseconds = -1) const;

 private:
  int descriptor_ = -1;
};

// Waits for any of poll()'s events; short, so that the caller looks at its Stop in between.
void poll_briefly(std::vector<pollfd>& polled);

struct Interface {
  std::string name;
  in_addr address;
};

// The interface that NCCL_SOCKET_IFNAME names, else the first that is not the loopback, else that.
Interface choose_interface();
bool interface_named();  // NCCL_SOCKET_IFNAME is set
std::string interface_of(in_addr address);
std::string to_text(in_addr address);
// The RDMA devices under HETCOMM_SYSFS_ROOT (else /sys) that NCCL_IB_HCA allows.
std::vector<std::string> adapters();

}  // namespace hetcomm::emulated
