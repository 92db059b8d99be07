#include "island/shm/shm.h"

#include <algorithm>
#include <bit>
#include <thread>

#include "base/config.h"
#include "base/instruction_set.h"
#include "base/joined.h"
#include "island/shm/arena.h"
#include "island/shm/handover.h"
#include "island/shm/lane.h"
#include "island/shm/peer_memory.h"
#include "island/shm/segment.h"

namespace hetcomm {
namespace shm {
namespace {

constexpr size_t kHostBytes = 64 << 20;     // of all slots together, if no slot size is set
constexpr size_t kLargestSlot = 128 << 10;  // larger slots fall out of the second-level cache
// Stages of set-up, see MemberState::attached.
constexpr uint64_t kIntroduced = 1;
constexpr uint64_t kProbed = 2;
// How often set-up asks for another rank's failure, and how long each question takes.
constexpr std::chrono::seconds kFailureInterval(1);
constexpr std::chrono::milliseconds kFailureBound(50);

size_t smallest_slot(const ShmOptions& options) {
  return std::max<size_t>(4096, size_t{64} * options.members);  // one line for every peer
}

size_t slot_bytes(const ShmOptions& options) {
  size_t wanted = options.slot_bytes;
  if (wanted == 0) {
    wanted = static_cast<size_t>(setting("HETCOMM_SHM_SLOT", 0, 4 << 10, 1 << 30));
    if (wanted == 0) {
      const size_t share = kHostBytes / (size_t(options.members) * options.lanes * kDepth);
      wanted = std::min(kLargestSlot, std::bit_floor(std::max<size_t>(1, share)));
    }
  }
  return (std::max(wanted, smallest_slot(options)) + 63) / 64 * 64;
}

class ShmIsland final : public Island {
 public:
  ShmIsland(const ShmOptions& options, Deadline deadline)
      : options_(options),
        handover_(Handover::find(options.name)),
        segment_(handover_ != nullptr
                     ? handover_->memory()
                     : int{Handover::take(options.name, options.rank(0), deadline)}),
        doorbell_(segment_, options.member, options.wake),
        peers_(segment_, options_) {
    check_shape();
    peers_.introduce();
    attach();
    try {
      join(deadline);
    } catch (...) {  // if one member gives up, all do
      segment_.poison(options.member);
      Handover::withdraw(options.name);
      throw;
    }
  }

  std::string describe() const override {
    return "shared memory, " + std::to_string(options_.members) +
           (options_.members == 1 ? " rank, " : " ranks, ") + name(instruction_set()) + ", " +
           peers_.describe();
  }
  int lanes() const override { return options_.lanes; }
  int64_t direct_calls() const override {
    int64_t calls = 0;
    for (const auto& lane : lanes_) calls += lane->direct_calls();
    return calls;
  }
  void start(int lane, const IslandCall& call) override { lanes_[lane]->start(call); }
  Progress progress(int lane, Status& status) override { return lanes_[lane]->progress(status); }

  void abandon(int lane) override {
    lanes_[lane]->drop();
    segment_.poison(options_.member);
    doorbell_.ring(true);
  }

  void set_sleeping(bool sleeping) override {
    uint64_t awaited = 0;
    if (sleeping) {
      for (const auto& lane : lanes_) awaited |= lane->awaited();
    }
    doorbell_.await(awaited);
  }

 private:
  void check_shape() const;
  void attach();
  void join(Deadline deadline);
  void await(uint64_t stage, Deadline deadline);
  void check_failure(Deadline& next) const;
  std::vector<int> missing(uint64_t stage) const;  // members that have not reached the stage
  Status given_up(const Segment::Poison& poison) const;

  ShmOptions options_;
  std::shared_ptr<Handover> handover_;  // during set-up, in the process that made the memory
  Segment segment_;
  Doorbell doorbell_;
  PeerMemory peers_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

void ShmIsland::check_shape() const {
  const Shape& shape = segment_.shape();
  const bool fits = static_cast<int>(shape.members) == options_.members &&
                    static_cast<int>(shape.lanes) == options_.lanes &&
                    shape.slot_bytes >= smallest_slot(options_);
  if (fits) return;
  throw Error(Code::transport,
              "shared memory " + options_.name + ": expected " + std::to_string(options_.members) +
                  " members and " + std::to_string(options_.lanes) + " lanes; got " +
                  std::to_string(shape.members) + " members, " + std::to_string(shape.lanes) +
                  " lanes and slots of " + std::to_string(shape.slot_bytes) +
                  " bytes; set the same HETCOMM_* variables on all ranks");
}

std::vector<int> ShmIsland::missing(uint64_t stage) const {
  std::vector<int> members;
  for (int member = 0; member < options_.members; ++member) {
    if (segment_.member(member).attached.load(std::memory_order_acquire) >= stage) continue;
    members.push_back(member);
  }
  return members;
}

// A member for which another one has waited in vain is the first cause.
Status ShmIsland::given_up(const Segment::Poison& poison) const {
  const int rank = options_.rank(poison.by), self = options_.rank(options_.member);
  const std::string text =
      "rank " + std::to_string(rank) + " gave up joining the ranks of this host";
  if (poison.awaited < 0) {
    return Status(Code::peer_failed, text + "; its own error says why", self, rank);
  }
  if (poison.awaited == options_.member) {
    return Status(Code::peer_failed, text + ", because this rank did not come in time", self, rank);
  }
  const int awaited = options_.rank(poison.awaited);
  return Status(Code::peer_failed,
                text + ", because rank " + std::to_string(awaited) +
                    " did not come in time; see the log of rank " + std::to_string(awaited),
                self, awaited);
}

void ShmIsland::attach() {
  uint64_t absent = 0;
  if (!segment_.member(options_.member).attached.compare_exchange_strong(absent, kIntroduced)) {
    throw Error(Code::invalid_argument, "shared memory " + options_.name + ": member " +
                                            std::to_string(options_.member) +
                                            " has come before; give every rank its own index");
  }
}

void ShmIsland::join(Deadline deadline) {
  await(kIntroduced, deadline);
  Handover::withdraw(options_.name);
  handover_.reset();
  peers_.probe();
  segment_.member(options_.member).attached.store(kProbed, std::memory_order_release);
  await(kProbed, deadline);
  peers_.conclude();
  options_.failure = nullptr;  // of the set-up
  for (int lane = 0; lane < options_.lanes; ++lane) {
    lanes_.push_back(std::make_unique<Lane>(segment_, doorbell_, peers_, options_, lane));
  }
}

void ShmIsland::check_failure(Deadline& next) const {
  if (!options_.failure || !next.passed()) return;
  check(options_.failure(Deadline(kFailureBound)));
  next = Deadline(kFailureInterval);
}

void ShmIsland::await(uint64_t stage, Deadline deadline) {
  Deadline next_question(kFailureInterval);
  auto pause = std::chrono::microseconds(50);
  const int self = options_.rank(options_.member);
  for (std::vector<int> members; !(members = missing(stage)).empty();) {
    if (handover_ != nullptr) handover_->serve();
    const Segment::Poison poison = segment_.poisoned();
    if (poison.by >= 0) throw Error(given_up(poison));
    check_failure(next_question);
    if (deadline.passed()) {
      segment_.poison(options_.member, members.front());
      std::vector<int> ranks;
      for (int member : members) ranks.push_back(options_.rank(member));
      throw Error(Status(Code::timeout,
                         "shared memory of this host: expected all " +
                             std::to_string(options_.members) + " ranks within " +
                             format_seconds(deadline.timeout()) + "; missing: rank " +
                             joined(ranks) + "; check that they are alive",
                         self, ranks.front()));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(2000));
  }
}

void validate(const ShmOptions& options) {
  const bool valid =
      options.members >= 1 && options.member >= 0 && options.member < options.members &&
      options.lanes >= 1 &&
      (options.ranks.empty() || options.ranks.size() == static_cast<size_t>(options.members));
  if (valid) return;
  throw Error(Code::invalid_argument,
              "shared memory island: expected a member of 0 to members - 1, at least one lane and "
              "a rank for each member; got member " +
                  std::to_string(options.member) + " of " + std::to_string(options.members) + ", " +
                  std::to_string(options.lanes) + " lanes and " +
                  std::to_string(options.ranks.size()) + " ranks");
}

}  // namespace
}  // namespace shm

std::string create_shm_segment(const ShmOptions& options) {
  shm::validate(options);
  shm::Shape shape;
  shape.members = static_cast<uint32_t>(options.members);
  shape.lanes = static_cast<uint32_t>(options.lanes);
  shape.slot_bytes = shm::slot_bytes(options);
  return shm::Handover::offer(shm::Segment::create(shape), options.across_namespaces);
}

void remove_shm_segment(const std::string& name) { shm::Handover::withdraw(name); }

std::shared_ptr<void> allocate_shared(size_t bytes) { return shm::Arena::mine().allocate(bytes); }

std::unique_ptr<Island> open_shm_island(const ShmOptions& options, Deadline deadline) {
  shm::validate(options);
  return std::make_unique<shm::ShmIsland>(options, deadline);
}

}  // namespace hetcomm
