#pragma once

#include <memory>
#include <vector>

#include "island/island.h"
#include "island/shm/direct.h"
#include "island/shm/doorbell.h"
#include "island/shm/exchange.h"
#include "island/shm/segment.h"
#include "island/shm/shm.h"

namespace hetcomm::shm {

// One lane of one member: carries calls through rounds. Rounds are numbered across all calls of the
// lane. Round r uses slot r % depth. So a member publishes round r once every other member has
// finished reading round r - depth, and reads round r once every other member has published it.
// Every member publishes every round, so members that make different calls find out. Owned by an
// island; used under the executor's lock.
class Lane {
 public:
  Lane(Segment& segment, Doorbell& doorbell, PeerMemory& peers, const ShmOptions& options,
       int lane);

  void start(const IslandCall& call);
  Island::Progress progress(Status& status);
  void drop() { call_ = nullptr; }
  int64_t direct_calls() const { return direct_.calls(); }
  // The members that this lane waits for, as bits of Doorbell; 0 if idle.
  uint64_t awaited() const;

 private:
  bool publish(Status& status);
  bool reserve(Status& status);
  bool readable(int member);
  void store_processor();
  bool read(Status& status);
  bool has_room(uint64_t round);
  bool has_arrived(uint64_t round, Status& status);
  bool spin(Status& status);
  bool awaits_same_processor() const;
  Status validate(const IslandCall& call) const;
  Status aborted() const;
  Status mismatch(int peer, const CallDescriptor& theirs) const;
  std::string describe(int member, const CallDescriptor& descriptor) const;

  Segment& segment_;
  Doorbell& doorbell_;
  const ShmOptions& options_;
  const int lane_;
  const int member_;
  const int members_;
  std::unique_ptr<Exchange> exchanges_[2][2];  // [reduces][to_all] of a call
  Direct direct_;

  const IslandCall* call_ = nullptr;
  Exchange* exchange_ = nullptr;
  Status rejection_;       // why this call cannot begin
  Status failure_;         // why no later call can begin: members are out of step
  uint64_t base_ = 0;      // rounds before this call
  int64_t published_ = 0;  // rounds of this call
  int64_t read_ = 0;
  bool suits_ = false;              // Direct::suits() of the call
  bool shared_ = false;             // Direct::shared() of the call
  bool shared_by_all_ = false;      // on all members whose slots were seen so far
  int arrived_ = 0;                 // lower members have published the round to be read
  int roomy_ = 0;                   // lower members have left room for the round to be published
  int spins_ = 0;                   // looks that spin() takes
  int64_t reserved_ = -1;           // bytes of each of this member's slots; -1: nothing yet
  std::vector<bool> readable_;      // by member: its slots are known to be reserved
  std::vector<uint64_t> finished_;  // by member: rounds known to be finished
  std::vector<const std::byte*> slots_;  // scratch of read()
};

}  // namespace hetcomm::shm
