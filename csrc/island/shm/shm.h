#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "island/island.h"

namespace hetcomm {

struct ShmOptions {
  int member = 0;  // this rank's index in the island
  int members = 1;
  std::vector<int> ranks;  // the rank of each member, for messages; empty: the index itself
  int lanes = 4;
  size_t slot_bytes = 0;  // 0: HETCOMM_SHM_SLOT, else a share of 64 MiB; the creator's value counts
  std::string name;       // of the segment, from create_shm_segment()
  // HETCOMM_HOST_ID is set: members may have different network namespaces, and share /dev/shm.
  bool across_namespaces = false;

  // Puts a call in words, "all_reduce sum float32 x 100". A peer may have written any values.
  std::function<std::string(const CallDescriptor&)> describe_call;
  // Ends the poll of a sleeping member; called from progress() and abandon().
  std::function<void(int member)> wake;

  // The failure of a rank, for set-up; ok if none is known by the deadline.
  std::function<Status(const Deadline&)> failure;

  int rank(int member) const { return ranks.empty() ? member : ranks[member]; }
};

// Makes the segment of an island: a file in memory without a name. Offers the segment to processes
// of this user, and returns the unguessable name of the offer. The first member calls this and
// tells the other members the name. They get the segment once that member opens the island. The
// segment takes no room in /dev/shm, and nothing is left however processes end. Throws
// Error(vendor).
std::string create_shm_segment(const ShmOptions& options);
// Withdraws the offer, for a creator that gives up before it opens the island.
void remove_shm_segment(const std::string& name);

// The CPU engine: collectives over shared memory that all members map. Opening waits for all
// members. Slots take memory when a member's calls first need them. Throws Error(timeout) with the
// missing ranks, Error(peer_failed) if the creator is gone, Error(transport) if the segment does
// not fit.
std::unique_ptr<Island> open_shm_island(const ShmOptions& options, Deadline deadline);

// Memory that other processes of this user on this host can read. A call needs no slots if all its
// buffers on all members are such memory. Zeros, aligned to a page, freed with the last reference.
// Thread-safe. Throws Error(vendor) if there is no memory.
std::shared_ptr<void> allocate_shared(size_t bytes);

}  // namespace hetcomm
