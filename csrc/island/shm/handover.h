#pragma once

#include <memory>
#include <string>

#include "base/deadline.h"
#include "base/descriptor.h"

namespace hetcomm::shm {

// Passes an island's memory from the member that made it to the other members: a file without a
// name, whose descriptor goes over a Unix socket. The kernel forgets both with the last process, so
// no order of deaths leaves anything behind. The socket is an abstract one; members reach it since
// a host is one network namespace. Where HETCOMM_HOST_ID says what a host is, there is one in
// /dev/shm as well. Thread-safe.
class Handover {
 public:
  // Offers `memory` to processes of this user until it is withdrawn. Returns the unguessable name
  // under which they take it. Throws Error(vendor).
  static std::string offer(Descriptor memory, bool across_namespaces);
  static void withdraw(const std::string& name);  // no error if it is gone
  // This process's offer of that name, also in a forked child; null if there is none.
  static std::shared_ptr<Handover> find(const std::string& name);
  // Another process's offer. Throws Error(peer_failed) if that is withdrawn, Error(timeout),
  // or Error(transport) if this process is not to have it.
  static Descriptor take(const std::string& name, const Deadline& deadline);

  ~Handover();

  int memory() const { return memory_; }
  // Gives the memory to all that have asked so far. Called by those that wait for them. Throws
  // Error(vendor).
  void serve();

 private:
  Handover(Descriptor memory, const std::string& name, bool across_namespaces);

  const Descriptor memory_;
  Descriptor abstract_;
  Descriptor in_folder_;  // the socket in /dev/shm, if there is one
  const std::string path_;
};

}  // namespace hetcomm::shm
