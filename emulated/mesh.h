#pragma once

#include <cstdint>
#include <vector>

#include "emulated/place.h"
#include "emulated/sockets.h"

namespace hetcomm::emulated {

// The call of a message. Both ends state it. So members that make different calls get an error,
// where the vendors' libraries hang. A member may end its communicator before the others. The end
// then waits for the other members, and their calls wait for this member.
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

// The address at which a member listens, and where its launches are, as members exchange it.
struct Contact {
  sockaddr_in address{};
  Place place;
};

// One TCP connection between every two members. Used by one thread at a time.
class Mesh {
 public:
  // `listener` has the address of contacts[rank]. Accepts only members that know the magic.
  Mesh(int rank, const std::vector<Contact>& contacts, const uint8_t (&magic)[16],
       const Socket& listener, const Stop& stop);

  // Moves all messages at once; those of one peer in order, also those to itself. Throws Failure (a
  // peer is gone, or makes another call) and Aborted.
  void exchange(const std::vector<Message>& sends, const std::vector<Message>& receives,
                const Stop& stop);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(sockets_.size()); }
  const Place& place(int member) const { return places_[static_cast<size_t>(member)]; }

 private:
  const int rank_;
  std::vector<Socket> sockets_;
  std::vector<Place> places_;  // by member
};

}  // namespace hetcomm::emulated
