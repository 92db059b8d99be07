#pragma once

#include <cstdint>
#include <vector>

#include "emulated/sockets.h"

namespace hetcomm::emulated {

// What the bytes of a message belong to. Both ends state it, so that members which make different
// calls get an error where the vendors' libraries stand still.
struct Label {
  uint16_t kind = 0;  // CallKind
  uint8_t type = 0;   // CclType
  uint8_t op = 0;     // CclOp
  uint32_t sequence = 0;
};

struct Message {
  int peer;
  void* data;  // read or written
  size_t bytes;
  Label label;
};

// Where a member listens, how members know each other. Exchanged as it is.
struct Contact {
  sockaddr_in address{};
};

// One TCP connection between every two members. One thread at a time.
class Mesh {
 public:
  // `listener` is where contacts[rank] says. Only holders of the magic are let in.
  Mesh(int rank, const std::vector<Contact>& contacts, const uint8_t (&magic)[16],
       const Socket& listener, const Stop& stop);

  // All at once, in order per peer. Throws Failure (a peer is gone, or makes another call) and
  // Aborted. Messages of a member to itself are matched in order.
  void exchange(const std::vector<Message>& sends, const std::vector<Message>& receives,
                const Stop& stop);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(sockets_.size()); }

 private:
  const int rank_;
  std::vector<Socket> sockets_;
};

}  // namespace hetcomm::emulated
