#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulated/ccl_abi.h"
#include "emulated/mesh.h"

namespace hetcomm::emulated {

// What a unique id holds. Members of another vendor's library refuse it.
struct Identity {
  char tag[8];
  char vendor[16];
  uint8_t magic[16];
  sockaddr_in root;
};

// A member as it introduces itself.
struct Introduction {
  uint8_t magic[16];
  int32_t rank;
  int32_t size;
  uint64_t host;
  int32_t device;
  Contact contact;
};

// Throws Failure. The root that members meet at runs in this process, for ten minutes at most.
UniqueId make_unique_id();
Identity read_unique_id(const UniqueId& id);

// Meets all members at the root of `identity` and connects to each. `address` becomes where this
// member listens. Throws Failure or Aborted.
std::unique_ptr<Mesh> meet(const Identity& identity, int rank, int size, int device,
                           const Stop& stop, in_addr& address);

}  // namespace hetcomm::emulated
