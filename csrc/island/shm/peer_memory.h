#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "island/shm/segment.h"
#include "island/shm/shm.h"

namespace hetcomm::shm {

struct MappedArena;

// The other members' arenas, as this process reads them. In set-up members agree whether all can
// read all: each member introduces itself, tries to open every arena, and looks at all answers.
// Arenas are mapped before the first call that could read them, once in a process. Owned by an
// island; used under the executor's lock.
class PeerMemory {
 public:
  PeerMemory(Segment& segment, const ShmOptions& options);
  PeerMemory(const PeerMemory&) = delete;

  // Set-up, in this order; all members finish one before any member begins the next.
  void introduce();
  void probe();
  void conclude();

  bool usable() const { return reason_.empty(); }  // the same on all members
  std::string describe() const;

  // Maps all arenas, once. False if that failed, with one warning.
  bool map();
  // The address in this process of `bytes` at `offset` in a member's arena, after map(). Null and a
  // status if the arena has no such bytes.
  const std::byte* at(int member, uint64_t offset, int64_t bytes, Status& status) const;

 private:
  int open_arena(int member, int& error) const;
  std::shared_ptr<const MappedArena> mapped(int member, int& error) const;

  Segment& segment_;
  const ShmOptions& options_;
  std::vector<std::shared_ptr<const MappedArena>> mapped_;  // by member; empty until map()
  bool failed_ = false;                                     // map() has failed
  std::string reason_ = "not agreed yet";  // why no member reads; empty if all can read all
};

}  // namespace hetcomm::shm
