#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "island/island.h"

namespace hetcomm {

struct ShmOptions {
  int member = 0;  // this rank's index in the island
  int members = 1;
  std::vector<int> ranks;  // the rank of each member, for messages; empty: the index itself
  int lanes = 4;
  size_t slot_bytes = 0;  // 0: HETCOMM_SHM_SLOT, else a share of 64 MiB; the creator's value counts
  std::string name;       // of the segment, as create_shm_segment returned it
  // Members may be in unlike network namespaces, with one /dev/shm: HETCOMM_HOST_ID says so.
  bool across_namespaces = false;

  // Puts a call in words, "all_reduce sum float32 x 100". Gets whatever a peer wrote.
  std::function<std::string(const CallDescriptor&)> describe_call;
  // Wakes a sleeping member out of its poll; called from progress() and abandon().
  std::function<void(int member)> wake;
};

// Makes the memory that the members of one island share, a file without a name, and offers it to
// processes of this user under an unguessable name, which it returns. Called by one member, which
// tells the others. Members get the memory once that member opens the island. It needs no room in
// /dev/shm, and nothing is left however the processes end. Throws Error(vendor).
std::string create_shm_segment(const ShmOptions& options);
// Offers it no longer, for a creator that gives up before it has opened the island.
void remove_shm_segment(const std::string& name);

// The CPU engine: collectives over shared memory that all members map. Opening waits until all have
// come. Memory of slots is taken when a member's calls first need it. Throws Error(timeout) naming
// who is missing, Error(peer_failed) when the creator is gone, Error(transport) when the segment is
// not what was expected.
std::unique_ptr<Island> open_shm_island(const ShmOptions& options, Deadline deadline);

// Memory that other processes of this user on this host can read: calls whose buffers are such on
// all members need no slots. At a page, zero, given back with the last reference. Thread-safe.
// Throws Error(vendor) where there is none left.
std::shared_ptr<void> allocate_shared(size_t bytes);

}  // namespace hetcomm
