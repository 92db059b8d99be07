#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulated/ccl_abi.h"
#include "emulated/mesh.h"

namespace hetcomm::emulated {

// The contents of a unique id. Libraries of other vendors refuse it.
struct Identity {
  char tag[8];
  char vendor[16];
  uint8_t magic[16];
  sockaddr_in root;
};

// The first message of a member to the root.
struct Introduction {
  uint8_t magic[16];
  int32_t rank;
  int32_t size;
  uint64_t host;
  int32_t device;
  Contact contact;
};

// Starts the root, at which members meet, in this process for ten minutes at most. Throws Failure.
UniqueId make_unique_id();
Identity read_unique_id(const UniqueId& id);

// Meets all members at the root of `identity` and connects to each. Sets `address` to the address
// at which this member listens. Throws Failure or Aborted.
std::unique_ptr<Mesh> meet(const Identity& identity, int rank, int size, int device,
                           const Stop& stop, in_addr& address);

}  // namespace hetcomm::emulated
