#include "island/shm/lane.h"

#include <sched.h>

#include "base/dtype.h"
#include "base/pause.h"

namespace hetcomm::shm {
namespace {

// Most rounds of one progress(), so that other work gets its turn.
constexpr int kRoundsPerTurn = 4;
// Looks for the other members' slots, with a pause each, right after a member has published. They
// take about a microsecond. The slots come in this time if all members make the call together.
constexpr int kMostSpins = 24;
// With fewer looks, a member would never see a peer that is a little late each time.
constexpr int kLeastSpins = 8;

// From 1; 0 if not known.
uint32_t this_processor() { return static_cast<uint32_t>(sched_getcpu() + 1); }

}  // namespace

Lane::Lane(Segment& segment, Doorbell& doorbell, PeerMemory& peers, const ShmOptions& options,
           int lane)
    : segment_(segment),
      doorbell_(doorbell),
      options_(options),
      lane_(lane),
      member_(options.member),
      members_(options.members),
      direct_(options, static_cast<int64_t>(segment.shape().slot_bytes), peers),
      readable_(options.members),
      finished_(options.members),
      slots_(options.members) {
  const auto slot_bytes = static_cast<int64_t>(segment.shape().slot_bytes);
  exchanges_[true][true] = std::make_unique<AllReduce>(member_, members_, slot_bytes);
  exchanges_[true][false] = std::make_unique<ReduceScatter>(member_, members_, slot_bytes);
  exchanges_[false][true] = std::make_unique<AllGather>(member_, members_, slot_bytes);
  exchanges_[false][false] = std::make_unique<AllToAll>(member_, members_, slot_bytes);
}

void Lane::start(const IslandCall& call) {
  call_ = &call;
  published_ = read_ = 0;
  arrived_ = roomy_ = 0;
  rejection_ = failure_.ok() ? validate(call) : failure_;
  if (!rejection_.ok()) return;
  exchange_ = exchanges_[call.reduces][call.to_all].get();
  suits_ = direct_.suits(call);
  shared_by_all_ = shared_ = suits_ && direct_.shared(call);
  if (suits_ && direct_.offers()) {
    direct_.begin(*exchange_, shared_);
    exchange_ = &direct_;
  }
  exchange_->prepare(call);
}

Status Lane::validate(const IslandCall& call) const {
  if (Status gone = aborted(); !gone.ok()) return gone;
  auto reject = [&](const std::string& text) {
    return Status(Code::invalid_argument, text, options_.rank(member_));
  };
  if (call.reduces && !reducible(call.dtype, call.op)) {
    return reject(std::string(name(call.op)) + " is not defined for " + name(call.dtype));
  }
  auto known = [&](int member) { return member >= 0 && member < members_; };
  for (const IslandPiece& piece : call.pieces) {
    if (piece.count < 0 || (!call.reduces && !known(piece.from)) ||
        (!call.to_all && !known(piece.to))) {
      return reject("island piece: expected members 0 to " + std::to_string(members_ - 1) +
                    " and a count of at least 0; got from " + std::to_string(piece.from) + ", to " +
                    std::to_string(piece.to) + ", count " + std::to_string(piece.count));
    }
  }
  return Status();
}

Island::Progress Lane::progress(Status& status) {
  auto finish = [&](const Status& outcome) {
    status = outcome;
    call_ = nullptr;
    return Island::Progress::done;
  };
  if (call_ == nullptr) return Island::Progress::waiting;
  if (!rejection_.ok()) return finish(rejection_);
  bool advanced = false;
  Status failure;
  for (int turn = 0; turn < kRoundsPerTurn && read_ < exchange_->rounds(); ++turn) {
    const bool published = publish(failure);
    const bool was_read = failure.ok() && (!published || spin(failure)) && read(failure);
    if (!failure.ok()) return finish(failure_ = failure);
    advanced |= published || was_read;
    if (!published && !was_read) break;
  }
  if (read_ == exchange_->rounds()) {
    // A member that gave up may have freed its memory during a read.
    if (exchange_ == &direct_) failure = aborted();
    if (!failure.ok()) return finish(failure_ = failure);
    if (exchange_ != &direct_ && suits_) direct_.learn(shared_by_all_);
    base_ += read_;
    call_ = nullptr;
    return Island::Progress::done;
  }
  if (advanced) return Island::Progress::advanced;
  if (Status gone = aborted(); !gone.ok()) return finish(gone);
  return awaits_same_processor() ? Island::Progress::same_processor : Island::Progress::waiting;
}

Status Lane::aborted() const {
  const int culprit = segment_.poisoned().by;
  if (culprit < 0) return Status();
  return Status(Code::aborted,
                "rank " + std::to_string(options_.rank(culprit)) +
                    " gave up an operation among the ranks of this host; its own error says why",
                options_.rank(member_), options_.rank(culprit));
}

bool Lane::publish(Status& status) {
  const uint64_t round = base_ + published_;
  if (published_ == exchange_->rounds() || exchange_->needs(published_) > read_) return false;
  const int roomy = roomy_;
  if (!has_room(round)) return roomy_ != roomy;
  if (exchange_->extent() > reserved_ && !reserve(status)) return false;
  exchange_->publish(published_, segment_.data(lane_, member_, round));
  if (exchange_ == &direct_ && !direct_.failure().ok()) {
    status = direct_.failure();
    return false;
  }
  SlotHeader& header = segment_.header(lane_, member_, round);
  header.finished = (base_ + read_) | (shared_ ? kShared : 0);
  header.descriptor = call_->descriptor;
  header.round.store(round + 1, std::memory_order_release);
  store_processor();
  ++published_;
  roomy_ = 0;
  doorbell_.ring();
  return true;
}

bool Lane::reserve(Status& status) {
  status = segment_.reserve(lane_, member_, exchange_->extent());
  if (!status.ok()) return false;
  reserved_ = exchange_->extent();
  segment_.lane(lane_, member_).reserved.store(1, std::memory_order_release);
  return true;
}

bool Lane::readable(int member) {
  if (!readable_[member]) {
    readable_[member] = segment_.lane(lane_, member).reserved.load(std::memory_order_acquire) != 0;
  }
  return readable_[member];
}

// Stores only a change, so that the line stays in the other members' caches.
void Lane::store_processor() {
  const uint32_t here = this_processor();
  auto& told = segment_.member(member_).processor;
  if (told.load(std::memory_order_relaxed) != here) told.store(here, std::memory_order_relaxed);
}

bool Lane::awaits_same_processor() const {
  const uint32_t here = this_processor();
  if (here == 0) return false;
  auto runs_here = [&](int member) {
    return member != member_ && member < members_ &&
           segment_.member(member).processor.load(std::memory_order_relaxed) == here;
  };
  return (read_ < published_ && runs_here(arrived_)) ||
         (published_ < exchange_->rounds() && runs_here(roomy_));
}

bool Lane::has_room(uint64_t round) {
  const uint64_t depth = segment_.shape().depth;
  if (round < depth) return true;
  const uint64_t needed = round - depth + 1;
  for (; roomy_ < members_; ++roomy_) {
    if (roomy_ == member_ || finished_[roomy_] >= needed) continue;
    finished_[roomy_] = segment_.lane(lane_, roomy_).finished.load(std::memory_order_acquire);
    if (finished_[roomy_] < needed) return false;
  }
  return true;
}

bool Lane::read(Status& status) {
  if (read_ == published_) return false;
  const uint64_t round = base_ + read_;
  const int arrived = arrived_;
  if (!has_arrived(round, status)) return arrived_ != arrived;
  for (int member = 0; member < members_; ++member) {
    slots_[member] = segment_.data(lane_, member, round);
  }
  exchange_->read(read_, slots_.data());
  if (exchange_ == &direct_ && !direct_.failure().ok()) {
    status = direct_.failure();
    return false;
  }
  segment_.lane(lane_, member_).finished.store(round + 1, std::memory_order_release);
  ++read_;
  arrived_ = 0;
  doorbell_.ring();
  return true;
}

bool Lane::has_arrived(uint64_t round, Status& status) {
  for (; arrived_ < members_; ++arrived_) {
    if (arrived_ == member_) continue;
    if (!readable(arrived_)) return false;
    const SlotHeader& header = segment_.header(lane_, arrived_, round);
    const uint64_t seen = header.round.load(std::memory_order_acquire);
    if (seen <= round) return false;
    __builtin_prefetch(segment_.data(lane_, arrived_, round));
    if (seen > round + 1) {
      status = Status(Code::transport,
                      "shared memory of rank " + std::to_string(options_.rank(arrived_)) +
                          " is corrupt: expected round " + std::to_string(round + 1) + ", got " +
                          std::to_string(seen),
                      options_.rank(member_), options_.rank(arrived_));
      return false;
    }
    if (!(header.descriptor == call_->descriptor)) {
      status = mismatch(arrived_, header.descriptor);
      return false;
    }
    // The slot has the peer's finished rounds, which mostly saves reading its LaneState.
    finished_[arrived_] = header.finished & ~kShared;
    shared_by_all_ &= (header.finished & kShared) != 0;
  }
  return true;
}

// Looks for the other members' slots for a short time. If all members make the call together, it
// then needs no further wait. If they do not, perhaps because they share processors, each failure
// halves the next time.
bool Lane::spin(Status& status) {
  const uint64_t round = base_ + read_;
  for (int look = 0; !has_arrived(round, status); ++look) {
    if (!status.ok()) return false;
    if (look >= spins_) {
      spins_ = std::max(spins_ / 2, kLeastSpins);
      return false;
    }
    pause();
  }
  spins_ = kMostSpins;
  return true;
}

uint64_t Lane::awaited() const {
  if (call_ == nullptr || !rejection_.ok()) return 0;
  uint64_t members = 0;
  if (read_ < published_ && arrived_ < members_) members |= Doorbell::bit(arrived_);
  const bool wants_room = published_ < exchange_->rounds() && exchange_->needs(published_) <= read_;
  if (wants_room && roomy_ < members_) members |= Doorbell::bit(roomy_);
  return members;
}

Status Lane::mismatch(int peer, const CallDescriptor& theirs) const {
  std::string mine = describe(member_, call_->descriptor);
  std::string other = describe(peer, theirs);
  return Status(Code::invalid_argument,
                "ranks disagree: expected the same call from all; got " + other + ", " + mine +
                    "; check that all ranks make the same collective calls in the same order",
                options_.rank(member_), options_.rank(peer));
}

std::string Lane::describe(int member, const CallDescriptor& descriptor) const {
  return "rank " + std::to_string(options_.rank(member)) + " called " +
         options_.describe_call(descriptor) + " (call " + std::to_string(descriptor.sequence) + ")";
}

}  // namespace hetcomm::shm
