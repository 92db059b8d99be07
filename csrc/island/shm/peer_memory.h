#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "island/shm/segment.h"
#include "island/shm/shm.h"

namespace hetcomm::shm {

// The other members' arenas as this process can read them. Whether all can read all is agreed in
// set-up: all introduce themselves, each tries to open every other's arena, and all look at all
// answers. An arena is mapped when something in it is read first. Owned by an island, used under
// its lock.
class PeerMemory {
 public:
  PeerMemory(Segment& segment, const ShmOptions& options);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;

  void introduce();  // before others look
  void probe();      // once all have introduced themselves
  void conclude();   // once all have probed

  bool usable() const { return reason_.empty(); }
  std::string describe() const;

  // Where `bytes` at `offset` in the arena of a member are here; null and a status if nowhere.
  const std::byte* at(int member, uint64_t offset, int64_t bytes, Status& status);

 private:
  struct Mapped {
    const std::byte* base = nullptr;
    uint64_t bytes = 0;
  };

  int open_arena(int member, int& error) const;
  bool map(int member, Status& status);
  int rank(int member) const;

  Segment& segment_;
  const ShmOptions& options_;
  std::vector<Mapped> mapped_;             // by member
  std::string reason_ = "not agreed yet";  // why nobody reads; empty if all may read all
};

}  // namespace hetcomm::shm
