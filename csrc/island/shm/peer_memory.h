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

// The other members' arenas as this process can read them. Whether all can read all is agreed in
// set-up: all introduce themselves, each tries to open every other's arena, and all look at all
// answers. Arenas are mapped for the first call that could read them, once in a process. Owned by
// an island, used under its lock.
class PeerMemory {
 public:
  PeerMemory(Segment& segment, const ShmOptions& options);
  PeerMemory(const PeerMemory&) = delete;

  void introduce();  // before others look
  void probe();      // once all have introduced themselves
  void conclude();   // once all have probed

  bool usable() const { return reason_.empty(); }  // the same on all members
  std::string describe() const;

  // Whether all arenas are mapped here. Where that fails it is not tried again, with a warning.
  bool map();
  // Where `bytes` at `offset` in the arena of a member are here, which is mapped; null and a status
  // if nowhere.
  const std::byte* at(int member, uint64_t offset, int64_t bytes, Status& status) const;

 private:
  int open_arena(int member, int& error) const;
  std::shared_ptr<const MappedArena> mapped(int member, int& error) const;
  int rank(int member) const;

  Segment& segment_;
  const ShmOptions& options_;
  std::vector<std::shared_ptr<const MappedArena>> mapped_;  // by member; empty until map()
  bool failed_ = false;                                     // to map
  std::string reason_ = "not agreed yet";  // why nobody reads; empty if all may read all
};

}  // namespace hetcomm::shm
