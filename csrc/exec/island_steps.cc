#include "exec/island_steps.h"

namespace hetcomm {
namespace {

// The position of a range in the plan's buffers, in elements: unlike an address, equal on all
// members.
int64_t place(const Range& range) {
  return static_cast<int64_t>(range.space) << 56 |
         range.offset / static_cast<int64_t>(size_of(range.dtype));
}

}  // namespace

IslandSteps::IslandSteps(const Plan& plan, const RunMemory& memory, Paths& paths,
                         const Operation& operation, int lane, bool captured)
    : plan_(plan), memory_(memory), paths_(paths), island_(*paths.island()), lane_(lane) {
  call_.dtype = plan.spec.dtype;
  call_.descriptor = operation.call;
  call_.captured = captured;
}

int IslandSteps::next() const {
  const auto& steps = plan_.schedule.island_steps;
  return next_ < steps.size() ? steps[next_].index : -1;
}

void IslandSteps::start() {
  const IslandStep& scheduled = plan_.schedule.island_steps[next_];
  const Step& step = plan_.steps[scheduled.index];
  call_.reduces = step.kind->reduces;
  call_.to_all = step.kind->to_all;
  call_.op = step.scaled ? plan_.spec.op : combining(plan_.spec.op);
  call_.descriptor.step = next_;  // indices of steps differ between ranks
  call_.pieces.clear();
  for (size_t i = 0; i < step.pieces.size(); ++i) {
    const Piece& piece = step.pieces[i];
    const auto [from, to] = scheduled.members[i];
    const bool reads = piece.from < 0 || piece.from == plan_.rank;
    const bool writes = piece.to < 0 || piece.to == plan_.rank;
    call_.pieces.push_back({from, to, reads ? memory_.at(piece.source) : nullptr,
                            writes ? memory_.at(piece.target) : nullptr, piece.source.count,
                            place(piece.source), place(piece.target)});
  }
  active_ = held_ = true;
  if (island_.stream() == nullptr) return island_.start(lane_, call_);
  launching_ = true;
  try {
    paths_.launch()([this] { island_.start(lane_, call_); });
  } catch (...) {
    launching_ = false;
    throw;
  }
  launching_ = false;
}

Island::Progress IslandSteps::progress(Status& status) {
  const Island::Progress progress = island_.progress(lane_, status);
  if (progress != Island::Progress::done || status.code() == Code::aborted) return progress;
  active_ = false;
  held_ = !status.ok();
  ++next_;
  return progress;
}

void IslandSteps::abandon() {
  if (active_) island_.abandon(lane_);
  active_ = false;
}

Event IslandSteps::event() const { return active_ && !launching_ ? island_.event(lane_) : nullptr; }

bool IslandSteps::enqueued() const {
  const size_t left = plan_.schedule.island_steps.size() - next_;
  return left == 0 || (left == 1 && event() != nullptr);
}

}  // namespace hetcomm
