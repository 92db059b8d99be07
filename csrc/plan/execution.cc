#include "plan/execution.h"

#include <algorithm>

#include "plan/contributions.h"

namespace hetcomm {

Execution::Execution(const Topology& topology, const std::vector<Plan>& plans,
                     const StepGraph& graph, const std::vector<Extents>& inputs)
    : topology_(topology),
      plans_(plans),
      graph_(graph),
      spec_(plans[0].spec),
      element_(static_cast<int64_t>(size_of(spec_.dtype))),
      terms_(topology.size()),
      memory_(kSpaces * plans.size()),
      encoded_(kSpaces * plans.size()),
      accesses_(plans.size()),
      updated_(plans.size()),
      waits_(graph.waits()),
      arrived_(graph.collectives().size(), 0) {
  for (int rank = 0; rank < topology.size(); ++rank) {
    memory(rank, Space::input).write(0, inputs[rank]);
  }
  if (spec_.collective != Collective::barrier) return;
  for (int rank = 0; rank < topology.size(); ++rank) {  // a barrier moves memory of any content
    for (Space space : {Space::scratch, Space::staging}) {
      Extents tokens;
      for (int64_t at = 0; at < capacity(rank, space); at += element_) {
        tokens.push_back({at, at + element_, 0, rank});
      }
      memory(rank, space).write(0, tokens);
    }
  }
}

int Execution::buffer(Space space) const {
  return space == Space::output && spec_.in_place ? 0 : static_cast<int>(space);
}

int64_t Execution::capacity(int rank, Space space) const {
  switch (space) {
    case Space::input:
      return buffer_counts(spec_, rank, topology_.size()).input * element_;
    case Space::output:
      return buffer_counts(spec_, rank, topology_.size()).output * element_;
    case Space::scratch:
      return plans_[rank].scratch_bytes;
    case Space::staging:
      return plans_[rank].staging_bytes;
    case Space::residual:
      return spec_.feedback ? residual_count(spec_, topology_.size()) * kResidualBytes : 0;
  }
  return 0;
}

bool Execution::same_place(const Range& a, const Range& b) const {
  return buffer(a.space) == buffer(b.space) && a.offset == b.offset && a.count == b.count;
}

void Execution::read(int rank, const Range& range, Extents& value) const {
  memory_[kSpaces * rank + buffer(range.space)].read(range.offset, range.plain_bytes(), value);
}

Range Execution::range_of(const Range& range, const Extent& extent) {
  return range.within(range.offset + extent.begin, range.offset + extent.end);
}

bool Execution::reachable(int step, const Range& range, const char* verb) {
  const int64_t bytes = capacity(graph_.rank_of(step), range.space);
  if (range.offset >= 0 && range.count >= 0 && range.offset <= bytes - range.bytes()) return true;
  report(step, verb + hetcomm::describe(range) + "; expected a range within its " +
                   std::to_string(bytes / element_) + " elements");
  return false;
}

void Execution::load(int step, int part, const Range& range, Extents& value) {
  value.clear();
  if (!reachable(step, range, "reads ") || range.count == 0) return;
  const int rank = graph_.rank_of(step);
  accesses_[rank].push_back(
      {buffer(range.space), range.offset, range.end(), graph_.index_of(step), part, false});
  if (range.codec) {
    load_encoded(step, range, value);
  } else {
    read(rank, range, value);
  }
  for (const Extent& extent : value) {
    if (extent.term != Terms::none) continue;
    const Extents* const encoded = range.codec ? nullptr : encoded_in(rank, range);
    report(step, "reads " + hetcomm::describe(range_of(range, extent)) + "; expected " +
                     (encoded ? "plain" : "written") + " elements, got " +
                     describe(encoded ? encoded->front() : extent));
    return;
  }
}

void Execution::store(int step, int part, const Range& range, const Extents& value) {
  if (!reachable(step, range, "writes ")) return;
  const int rank = graph_.rank_of(step);
  const int64_t bytes = value.empty() ? 0 : value.back().end;
  if (bytes != range.plain_bytes()) {
    report(step, "writes " + hetcomm::describe(range) + "; expected a source of " +
                     std::to_string(range.count) + " elements, got " +
                     std::to_string(bytes / element_));
    return;
  }
  if (range.count == 0) return;
  const bool kept = !spec_.in_place || capacity(rank, Space::output) == 0;
  if (range.space == Space::input && kept) {
    report(step, "writes " + hetcomm::describe(range) + "; expected the input to be kept");
    return;
  }
  if (!has_codec(step, "writes ", range, value)) return;
  auto& encoded = encoded_[kSpaces * rank + buffer(range.space)];
  auto overlapped = encoded.lower_bound(range.offset);
  if (overlapped != encoded.begin() && std::prev(overlapped)->second.range.end() > range.offset) {
    --overlapped;
  }
  encoded.erase(overlapped, encoded.lower_bound(range.end()));
  if (range.codec) {
    encoded[range.offset] = {range, value};
    memory(rank, range.space).write(range.offset, {{0, range.bytes(), 0, Terms::none}});
  } else {
    memory(rank, range.space).write(range.offset, value);
  }
  accesses_[rank].push_back(
      {buffer(range.space), range.offset, range.end(), graph_.index_of(step), part, true});
}

// sum += more, byte by byte. `range` holds `more`.
void Execution::add(int step, const Range& range, Extents& sum, const Extents& more,
                    Terms::Kind kind) {
  const int64_t length = sum.empty() ? 0 : sum.back().end;
  const int64_t bytes = more.empty() ? 0 : more.back().end;
  if (length != bytes) {
    report(step, "adds " + hetcomm::describe(range) + ": expected " +
                     std::to_string(length / element_) + " elements; got " +
                     std::to_string(bytes / element_));
    return;
  }
  Extents result;
  size_t i = 0, j = 0;
  for (int64_t at = 0; at < length;) {
    const Extent &a = sum[i], &b = more[j];
    const int64_t end = std::min(a.end, b.end);
    const Extent left{at, end, a.index + (at - a.begin), a.term};
    const Extent right{at, end, b.index + (at - b.begin), b.term};
    Extent both = left;
    if (a.term != Terms::none && b.term != Terms::none) {
      const Range where = range.within(range.offset + at, range.offset + end);
      const int term = terms_.sum(a.term, b.term, kind);
      if (left.index != right.index) {
        report(step, "adds " + hetcomm::describe(where) + ": expected " +
                         std::to_string(left.index / element_) +
                         " as the first element's index; got " + describe(right));
      } else if (terms_.scaled(a.term) != terms_.scaled(b.term)) {
        report(step, "adds " + hetcomm::describe(where) +
                         ": expected all contributions scaled or none; got " + describe(left) +
                         " and " + describe(right));
      } else if (terms_.encoded(a.term) || terms_.encoded(b.term)) {
        report(step, "adds " + hetcomm::describe(where) + ": expected plain elements; got " +
                         describe(left) + " and " + describe(right));
      } else if (term == Terms::none) {
        report(step, "adds " + hetcomm::describe(where) + ": counts rank " +
                         terms_.shared(a.term, b.term) + " twice; expected none of " +
                         terms_.ranks(a.term) + ", got " + describe(right));
      } else {
        both.term = term;
      }
    }
    append(result, both);
    at = end;
    if (a.end == end) ++i;
    if (b.end == end) ++j;
  }
  sum = std::move(result);
}

// `range` holds the value.
void Execution::scale(int step, const Range& range, Extents& value, Terms::Kind kind) {
  for (Extent& extent : value) {
    if (extent.term == Terms::none) continue;
    const int term = terms_.scale(extent.term, kind);
    if (term != Terms::none) {
      extent.term = term;
      continue;
    }
    report(step, "scales " + hetcomm::describe(range) +
                     ": expected contributions not yet scaled; got " + describe(extent));
    return;
  }
}

// Replaces each symbol by the effect of the step's kind.
void Execution::apply(int step, Extents& value) {
  for (Extent& extent : value) {
    if (extent.term == Terms::none) continue;
    const int term = graph_.step(step).kind->effect(terms_, graph_.step(step), extent.term);
    if (term == Terms::none) {
      return report(step, "cannot be applied to " + describe(extent));
    }
    extent.term = term;
  }
}

std::vector<std::string> Execution::run(size_t most) {
  most_errors_ = most;
  for (int step = graph_.steps() - 1; step >= 0; --step) {
    if (waits_[step] == 0) ready_.push_back(step);
  }
  while (!ready_.empty()) {
    const int step = ready_.back();
    ready_.pop_back();
    start(step);
  }
  report_deadlock();
  return errors_;
}

void Execution::start(int step) {
  if (waits_[step] < 0) return;  // completed together with its partner
  if (const int collective = graph_.island_collective_of(step); collective >= 0) {
    const std::vector<int>& steps = graph_.collectives()[collective].steps;
    if (++arrived_[collective] < static_cast<int>(steps.size())) return;
    perform_island(graph_.collectives()[collective]);
    for (int each : steps) complete(each);
  } else if (const int partner = graph_.partner(step); partner >= 0) {
    if (waits_[partner] != 0) return;
    const bool sends = graph_.step(step).kind->sends;
    const int send = sends ? step : partner, recv = sends ? partner : step;
    Extents value;
    load(send, 0, graph_.step(send).sources.at(0), value);
    store(recv, 0, graph_.step(recv).target, value);
    complete(send);
    complete(recv);
  } else {
    perform_local(step);
    complete(step);
  }
}

void Execution::complete(int step) {
  waits_[step] = -1;
  for (int next : graph_.dependents(step)) {
    if (--waits_[next] == 0) ready_.push_back(next);
  }
}

void Execution::perform_local(int step) {
  const Step& at = graph_.step(step);
  Extents sum, more;
  int target_part = 0;
  const size_t sources = at.kind->encodes ? 1 : at.sources.size();
  // A decoding step has at most one plain source, the first.
  for (size_t i = 1; at.kind->decodes && i < sources; ++i) {
    if (!at.sources[i].codec) report(step, "cannot be applied to plain elements beyond the first");
  }
  for (int part = 0; part < static_cast<int>(sources); ++part) {
    const Range& source = at.sources[part];
    Extents& value = part == 0 ? sum : more;
    load(step, part, source, value);
    if (at.kind->decodes && source.codec) decode(step, source, value);
    const Terms::Kind kind = part == 1 ? Terms::Kind::pair : Terms::Kind::same_step;
    if (part > 0) add(step, source, sum, more, kind);
    if (same_place(source, at.target)) target_part = part;
  }
  if (at.kind->encodes) update_residual(step, sum);
  if (at.scaled) scale(step, at.sources.at(0), sum, Terms::Kind::pair);
  if (at.kind->effect) apply(step, sum);
  const bool moves = !at.kind->reduces && !at.kind->effect && !at.kind->decodes;
  if (!moves || !same_place(at.sources.at(0), at.target)) store(step, target_part, at.target, sum);
}

void Execution::perform_island(const StepGraph::IslandCollective& collective) {
  for (int part = 0; part < static_cast<int>(collective.pieces.size()); ++part) {
    perform_piece(collective, part, collective.pieces[part]);
  }
}

void Execution::perform_piece(const StepGraph::IslandCollective& collective, int part,
                              const Piece& piece) {
  const int any = collective.steps[0];
  const StepKind& kind = *graph_.step(any).kind;
  const auto step_of = [&](int rank) {
    if (rank >= 0 && rank < topology_.size() && topology_.island_of(rank) == collective.island) {
      return collective.steps[topology_.index_in_island(rank)];
    }
    report(any, "piece " + std::to_string(part) + ": expected a member of island " +
                    std::to_string(collective.island) + "; got rank " + std::to_string(rank));
    return -1;
  };
  const int from = kind.reduces ? any : step_of(piece.from);
  const int to = kind.to_all ? any : step_of(piece.to);
  if (from < 0 || to < 0) return;
  Extents value, more;
  load(from, part, piece.source, value);
  for (size_t i = 1; kind.reduces && i < collective.steps.size(); ++i) {
    load(collective.steps[i], part, piece.source, more);
    add(collective.steps[i], piece.source, value, more, Terms::Kind::island);
  }
  if (graph_.step(any).scaled) scale(any, piece.source, value, Terms::Kind::island);
  for (int step : kind.to_all ? collective.steps : std::vector<int>{to}) {
    const bool nothing = !kind.reduces && step == from && same_place(piece.source, piece.target);
    if (!nothing) store(step, part, piece.target, value);
  }
}

void Execution::report(int step, const std::string& text) {
  if (errors_.size() < most_errors_) errors_.push_back(graph_.describe(step) + " " + text);
}

void Execution::report_deadlock() {
  std::string text;
  int last = -1, ranks = 0;
  for (int step = 0; step < graph_.steps(); ++step) {
    const int rank = graph_.rank_of(step);
    if (waits_[step] != 0 || rank == last) continue;
    last = rank;
    if (++ranks > 16) continue;
    text += (text.empty() ? "" : "; ") + graph_.describe(step);
    if (const int partner = graph_.partner(step); partner >= 0) {
      text += " for " + graph_.describe(partner);
    } else if (const int collective = graph_.island_collective_of(step); collective >= 0) {
      const size_t members = graph_.collectives()[collective].steps.size();
      text += " with " + std::to_string(arrived_[collective]) + " of " + std::to_string(members) +
              " members there";
    }
  }
  if (text.empty()) return;
  if (ranks > 16) text += "; and " + std::to_string(ranks - 16) + " more ranks";
  errors_.insert(errors_.begin(),
                 "deadlock: expected every step to complete; got stuck at " + text);
}

std::string Execution::describe(const Extent& extent) const {
  if (extent.term == Terms::none) return "nothing written";
  const int64_t end = extent.index + (extent.end - extent.begin);
  const std::string elements = "elements [" + std::to_string(extent.index / element_) + ", " +
                               std::to_string(end / element_) + ") of ";
  return elements +
         (extent.term == Contributions::every ? "all ranks"
                                              : "ranks " + terms_.ranks(extent.term)) +
         (extent.term >= 0 && terms_.scaled(extent.term) ? ", scaled" : "") +
         (extent.term >= 0 && terms_.encoded(extent.term) ? ", encoded" : "");
}

std::string Execution::describe(const Access& access) const {
  const bool both = access.buffer == 0 && spec_.in_place;
  const Space space = both ? Space::output : static_cast<Space>(access.buffer);
  return hetcomm::describe(Range{space, 0, 0, spec_.dtype}.within(access.begin, access.end));
}

}  // namespace hetcomm
