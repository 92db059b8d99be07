#include "plan/builder.h"

#include <algorithm>
#include <stdexcept>

#include "plan/lowering.h"
#include "plan/schedule.h"
#include "plan/steps.h"

namespace hetcomm {
namespace {

bool adjacent(const Range& first, const Range& second) {
  return first.space == second.space && first.end() == second.offset;
}

// Appends the range, or makes the last one longer.
void join(std::vector<Range>& ranges, const Range& range) {
  if (ranges.empty() || !adjacent(ranges.back(), range)) return ranges.push_back(range);
  ranges.back().count += range.count;
}

void require_equal_counts(const Range& source, const Range& target) {
  if (source.count == target.count) return;
  throw std::logic_error("expected a source and a target of equal count in a step; got " +
                         std::to_string(source.count) + " and " + std::to_string(target.count));
}

}  // namespace

void AccessMap::read(const Range& range, int step, std::vector<int>& waits_for) {
  accesses_.each(range, [&](Access& last, int64_t, int64_t) {
    if (last.written >= 0) waits_for.push_back(last.written);
    if (last.reads.empty() || last.reads.back() != step) last.reads.push_back(step);
  });
}

void AccessMap::write(const Range& range, int step, std::vector<int>& waits_for) {
  accesses_.each(range, [&](const Access& last, int64_t, int64_t) {
    waits_for.insert(waits_for.end(), last.reads.begin(), last.reads.end());
    if (last.written >= 0) waits_for.push_back(last.written);
  });
  accesses_.assign(range, Access{step, {}});
}

int AccessMap::last_write(const Range& range) {
  int last = -1;
  accesses_.each(range, [&last](const Access& access, int64_t, int64_t) {
    last = std::max(last, access.written);
  });
  return last;
}

std::vector<Range> reads(const Step& step, int rank) {
  if (!step.in_island()) return step.sources;
  std::vector<Range> ranges;
  for (const Piece& piece : step.pieces) {
    if (step.kind->reduces || piece.from == rank) join(ranges, piece.source);
  }
  return ranges;
}

std::vector<Range> writes(const Step& step, int rank) {
  if (step.kind->sends) return {};
  if (step.kind->encodes && step.sources.size() > 1) return {step.target, step.sources[1]};
  if (!step.in_island()) return {step.target};
  std::vector<Range> ranges;
  for (const Piece& piece : step.pieces) {
    const bool stays = piece.from == rank && piece.source == piece.target;
    if ((step.kind->to_all || piece.to == rank) && !stays) join(ranges, piece.target);
  }
  return ranges;
}

std::vector<Range> without_residuals(std::vector<Range> ranges) {
  std::erase_if(ranges, [](const Range& range) { return range.space == Space::residual; });
  return ranges;
}

PlanBuilder::PlanBuilder(const Topology& topology, const Spec& spec, const std::vector<int>& ranks,
                         const Codec* codec, bool for_price)
    : topology_(topology),
      spec_(spec),
      ranks_(ranks),
      index_(topology.size(), -1),
      codec_(codec),
      contributions_(spec.in_place ? Space::output : Space::input),
      for_price_(for_price),
      states_(ranks.size()),
      scratch_bytes_(topology.size(), 0) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    index_[ranks[i]] = static_cast<int>(i);
    islands_.push_back(topology.island_of(ranks[i]));
  }
  std::sort(islands_.begin(), islands_.end());
  islands_.erase(std::unique(islands_.begin(), islands_.end()), islands_.end());
  place_scale();
}

int PlanBuilder::divide(int chunks, int64_t whole, int64_t first) {
  division_ = {whole, first};
  return for_price_ ? 1 : chunks;
}

Range PlanBuilder::placed(Range range) const {
  if (range.space == Space::input) range.space = contributions_;
  return range;
}

void PlanBuilder::island_all_reduce(int island, const std::vector<Piece>& pieces) {
  island_step(steps::island_all_reduce, island, pieces);
}
void PlanBuilder::island_reduce_scatter(int island, const std::vector<Piece>& pieces) {
  island_step(steps::island_reduce_scatter, island, pieces);
}
void PlanBuilder::island_all_gather(int island, const std::vector<Piece>& pieces) {
  island_step(steps::island_all_gather, island, pieces);
}
void PlanBuilder::island_all_to_all(int island, const std::vector<Piece>& pieces) {
  island_step(steps::island_all_to_all, island, pieces);
}

void PlanBuilder::island_step(const StepKind& kind, int island, const std::vector<Piece>& pieces) {
  if (!builds_island(island)) return;
  const std::vector<int>& members = topology_.island(island);
  if (members.size() == 1) {
    for (const Piece& piece : pieces) copy(members[0], piece.source, piece.target);
    return;
  }
  Step step{.kind = &kind, .scaled = kind.reduces && island_scales_};
  step.pieces = joined(pieces, step.is_exchange());
  if (step.pieces.empty()) return;
  const bool own_alone = step.is_exchange() && topology_.native(members[0]);
  std::map<int, std::vector<Piece>> own;
  if (own_alone) {
    for (const Piece& piece : step.pieces) {
      if (builds(piece.from)) own[piece.from].push_back(piece);
      if (piece.to != piece.from && builds(piece.to)) own[piece.to].push_back(piece);
    }
  }
  for (int rank : members) {
    if (!builds(rank)) continue;
    if (own_alone) step.pieces = std::move(own[rank]);
    append(rank, step);
  }
}

// Without empty pieces, and with adjacent ones joined. In an exchange a piece joins the last one of
// its sender and receiver, whatever other pieces a build lists. In other steps it joins the last
// one of all.
std::vector<Piece> PlanBuilder::joined(const std::vector<Piece>& pieces, bool exchange) const {
  std::vector<Piece> result;
  std::map<std::pair<int, int>, size_t> last_of_pair;  // index + 1
  size_t last = 0;
  for (Piece piece : pieces) {
    require_equal_counts(piece.source, piece.target);
    if (piece.source.count == 0) continue;
    piece.source = placed(piece.source);
    piece.target = placed(piece.target);
    size_t& known = exchange ? last_of_pair[{piece.from, piece.to}] : last;
    Piece* before = known > 0 ? &result[known - 1] : nullptr;
    if (before && before->from == piece.from && before->to == piece.to &&
        adjacent(before->source, piece.source) && adjacent(before->target, piece.target)) {
      before->source.count += piece.source.count;
      before->target.count += piece.target.count;
    } else {
      result.push_back(piece);
      known = result.size();
    }
  }
  return result;
}

bool PlanBuilder::lists_all(int rank) const { return !topology_.native(rank) || builds(rank); }

void PlanBuilder::transfer(int from, const Range& source, int to, const Range& target,
                           bool even_if_empty) {
  if (from == to) return copy(from, source, target);
  require_equal_counts(source, target);
  if (source.count == 0 && !even_if_empty) return;
  if (source.codec) return message(from, source, to, target);
  if (encodes(from, to, source)) return encoded_transfer(from, source, to, target);
  if (!builds(from) && !builds(to)) return;
  const int64_t bytes = source.bytes();
  if (!topology_.staged(from, to, bytes) && !topology_.staged(to, from, bytes)) {
    return message(from, source, to, target);
  }
  for_parts(source.count, spec_.dtype, [&](int64_t offset, int64_t count) {
    message(from, source.part(offset, count), to, target.part(offset, count));
  });
}

void PlanBuilder::message(int from, const Range& source, int to, const Range& target) {
  if (builds(from)) {
    const int tag = state(from).sent[to]++;
    append(from, {.kind = &steps::send, .peer = to, .tag = tag, .sources = {placed(source)}});
  }
  if (builds(to)) {
    const int tag = state(to).received[from]++;
    append(to, {.kind = &steps::recv, .peer = from, .tag = tag, .target = placed(target)});
  }
}

void PlanBuilder::copy(int rank, const Range& source, const Range& target) {
  if (placed(source) != placed(target)) own_step(steps::copy, rank, {source}, target);
}

void PlanBuilder::own_step(const StepKind& kind, int rank, const std::vector<Range>& sources,
                           const Range& target) {
  if (!builds(rank) || target.count == 0) return;
  Step step{.kind = &kind, .target = placed(target)};
  for (const Range& source : sources) {
    require_equal_counts(source, target);
    step.sources.push_back(placed(source));
  }
  append(rank, std::move(step));
}

void PlanBuilder::reduce(int rank, const std::vector<Range>& sources, const Range& target) {
  const auto plain = [](const Range& source) { return !source.codec; };
  if (!std::all_of(sources.begin(), sources.end(), plain)) {
    std::vector<Range> plain_first = sources;
    std::stable_partition(plain_first.begin(), plain_first.end(), plain);
    return own_step(steps::decode_reduce, rank, plain_first, target);
  }
  if (sources.size() == 1) return copy(rank, sources[0], target);
  const auto reduce_part = [&](int64_t offset, int64_t count) {
    std::vector<Range> parts;
    for (const Range& source : sources) parts.push_back(source.part(offset, count));
    own_step(steps::reduce, rank, parts, target.part(offset, count));
  };
  if (!builds(rank)) return;
  if (through_staging(topology_, rank, target.bytes())) {
    for_parts(target.count, spec_.dtype, reduce_part);
  } else {
    reduce_part(0, target.count);
  }
}

void PlanBuilder::append(int rank, Step step) {
  if (topology_.native(rank)) {
    state(rank).unlowered.push_back(std::move(step));
  } else {
    add(state(rank), rank, std::move(step));
  }
}

void PlanBuilder::add(RankState& state, int rank, Step step) {
  const int index = static_cast<int>(state.plan.steps.size());
  std::vector<int> waits_for;
  for (const Range& range : reads(step, rank)) {
    state.accesses[static_cast<int>(range.space)].read(range, index, waits_for);
  }
  for (const Range& range : writes(step, rank)) {
    state.accesses[static_cast<int>(range.space)].write(range, index, waits_for);
  }
  std::sort(waits_for.begin(), waits_for.end());
  waits_for.erase(std::unique(waits_for.begin(), waits_for.end()), waits_for.end());
  std::vector<int> implied = {index};  // a step may read what it writes
  for (int earlier : waits_for) {
    if (earlier == index) continue;
    const std::vector<int>& after = state.plan.steps[earlier].after;
    const bool few = after.size() < waits_for.size();
    const std::vector<int>&shorter = few ? after : waits_for, &longer = few ? waits_for : after;
    std::copy_if(shorter.begin(), shorter.end(), std::back_inserter(implied), [&](int common) {
      return std::binary_search(longer.begin(), longer.end(), common);
    });
  }
  std::sort(implied.begin(), implied.end());
  std::set_difference(waits_for.begin(), waits_for.end(), implied.begin(), implied.end(),
                      std::back_inserter(step.after));
  if (step.is_message()) wait_for_number(state, step, index);
  state.plan.steps.push_back(std::move(step));
}

// Messages of one rank with one number in their tags are matched in order, so each waits for the
// one before.
void PlanBuilder::wait_for_number(RankState& state, Step& step, int index) {
  std::vector<int>& messages = state.messages[{step.peer, step.kind->sends}];
  if (messages.size() >= kMessageNumbers) {
    const int before = messages[messages.size() - kMessageNumbers];
    const auto place = std::lower_bound(step.after.begin(), step.after.end(), before);
    if (place == step.after.end() || *place != before) step.after.insert(place, before);
  }
  messages.push_back(index);
}

Range PlanBuilder::scratch(int first, int end, int64_t count) {
  const int64_t bytes = count * static_cast<int64_t>(size_of(spec_.dtype));
  return {Space::scratch, reserve(first, end, bytes), count, spec_.dtype};
}

int64_t PlanBuilder::reserve(int first, int end, int64_t bytes) {
  const auto begins = scratch_bytes_.begin() + first, ends = scratch_bytes_.begin() + end;
  const int64_t offset = *std::max_element(begins, ends);
  // Whole cache lines, so that neighbouring ranges never share one.
  std::fill(begins, ends, (offset + bytes + kCacheLine - 1) / kCacheLine * kCacheLine);
  return offset;
}

Plan PlanBuilder::take(int rank, std::string algorithm) {
  RankState& state = this->state(rank);
  if (output_scales_) scale_outputs(rank);
  Lowered lowered{.scratch_bytes = scratch_bytes_[rank]};
  if (topology_.native(rank)) {
    lowered = lower(topology_, spec_, rank, state.unlowered,
                    [&](Step step) { add(state, rank, std::move(step)); });
  }
  Plan plan = std::move(state.plan);
  plan.scratch_bytes = lowered.scratch_bytes;
  plan.staging_bytes = lowered.staging_bytes;
  plan.spec = spec_;
  plan.rank = rank;
  plan.size = topology_.size();
  plan.algorithm = std::move(algorithm);
  plan.members = topology_.island(topology_.island_of(rank));
  plan.schedule = schedule_of(plan.steps, plan.members);
  return plan;
}

}  // namespace hetcomm
