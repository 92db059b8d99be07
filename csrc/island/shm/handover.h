#pragma once

#include <memory>
#include <string>

#include "base/deadline.h"
#include "base/descriptor.h"

namespace hetcomm::shm {

// Passes an island's segment from its creator to the other members. The segment is a file without a
// name, and its descriptor goes over a Unix socket. The kernel frees both with the last process, so
// no order of deaths leaves anything behind. The socket is an abstract one: ranks of a host share a
// network namespace. With HETCOMM_HOST_ID they may not, so there is a socket in /dev/shm too.
// Thread-safe.
class Handover {
 public:
  // Offers `memory` to processes of this user until withdraw(). Returns the unguessable name for
  // take(). Throws Error(vendor).
  static std::string offer(Descriptor memory, bool across_namespaces);
  static void withdraw(const std::string& name);  // no error if there is no such offer
  // An offer of this process or, in a forked child, of its parent; null if there is none.
  static std::shared_ptr<Handover> find(const std::string& name);
  // The memory that another process offers. Throws Error(peer_failed) if the offer is withdrawn, or
  // Error(timeout), both with the rank that made it, `maker`, as the cause. Throws Error(transport)
  // if no descriptor comes.
  static Descriptor take(const std::string& name, int maker, const Deadline& deadline);

  ~Handover();

  int memory() const { return memory_; }
  // Answers requests, a bounded number of them. The creator calls this while it waits for members.
  // Throws Error(vendor).
  void serve();

 private:
  Handover(Descriptor memory, const std::string& name, bool across_namespaces);

  const Descriptor memory_;
  Descriptor abstract_;
  Descriptor in_folder_;  // the socket in /dev/shm, if there is one
  const std::string path_;
};

}  // namespace hetcomm::shm
