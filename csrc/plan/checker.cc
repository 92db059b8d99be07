#include "plan/checker.h"

#include <algorithm>

#include "plan/contributions.h"
#include "plan/execution.h"
#include "plan/memory_rules.h"
#include "plan/races.h"
#include "plan/step_graph.h"

namespace hetcomm {
namespace {

constexpr size_t kMostErrors = 16;  // one fault shows in many places

// Compares a rank's output with the wanted output; appends the first difference.
void check_output(const Execution& execution, const Range& output, const Extents& wanted, int rank,
                  const Spec& spec, bool scaled, std::vector<std::string>& errors) {
  // A lossy codec rounds an island's sum, and the total of an all_reduce.
  const int most_roundings = spec.collective == Collective::all_reduce ? 2 : 1;
  Extents value;
  for (const Extent& want : wanted) {
    const Range range = output.within(want.begin, want.end);
    execution.read(rank, range, value);
    for (const Extent& got : value) {
      const int64_t index = want.index + got.begin;
      const bool summed =
          want.term == Contributions::every
              ? got.term != Terms::none && execution.terms().all_ranks(got.term)
              : got.term != Terms::none && execution.terms().exact(got.term) == want.term;
      const bool reduced = want.term == Contributions::every && summed;
      if (summed && execution.terms().roundings(got.term) > most_roundings) {
        errors.push_back("rank " + std::to_string(rank) + " " +
                         describe(Execution::range_of(range, got)) + ": expected at most " +
                         std::to_string(most_roundings) + " roundings by a codec; got " +
                         std::to_string(execution.terms().roundings(got.term)));
        return;
      }
      if (reduced && execution.terms().scaled(got.term) != scaled) {
        errors.push_back("rank " + std::to_string(rank) + " " +
                         describe(Execution::range_of(range, got)) +
                         ": expected each contribution " + (scaled ? "scaled once" : "not scaled") +
                         "; got " + execution.describe(got));
        return;
      }
      if (summed && got.index == index) continue;
      const Range where = Execution::range_of(range, got);
      const Extent expected{got.begin, got.end, index, want.term};
      errors.push_back("rank " + std::to_string(rank) + " " + describe(where) + ": expected " +
                       execution.describe(expected) + "; got " + execution.describe(got));
      return;
    }
  }
}

// After a barrier each rank must hold a sum over all ranks.
void check_barrier(const Execution& execution, const Plan& plan, std::vector<std::string>& errors) {
  Extents value;
  const Range token{Space::scratch, 0, 1, plan.spec.dtype};
  for (const Range& range :
       {token.within(0, plan.scratch_bytes),
        Range{Space::staging, 0, 0, plan.spec.dtype}.within(0, plan.staging_bytes)}) {
    execution.read(plan.rank, range, value);
    for (const Extent& extent : value) {
      if (extent.term != Terms::none && execution.terms().all_ranks(extent.term)) return;
    }
  }
  if (plan.size > 1) {
    errors.push_back("rank " + std::to_string(plan.rank) +
                     " completes the barrier without memory that holds a sum over all ranks; "
                     "expected it to wait for each of them");
  }
}

// All ranks must combine in one order and round in the same places, or the bits of floating-point
// results differ: sums and products by rounding, minima and maxima by the sign of zero.
void check_order(const Execution& execution, const Spec& spec, int size,
                 std::vector<std::string>& errors) {
  const bool gathers = spec.collective == Collective::all_gather;
  if (spec.collective != Collective::all_reduce && !gathers) return;
  if (class_of(spec.dtype) != DtypeClass::floating) return;
  const Range output{Space::output, 0, buffer_counts(spec, 0, size).output, spec.dtype};
  Extents first, value;
  execution.read(0, output, first);
  for (int rank = 1; rank < size; ++rank) {
    execution.read(rank, output, value);
    if (value == first) continue;
    size_t i = 0;
    while (value[i] == first[i]) ++i;
    const Range where = output.within(value[i].begin, std::min(value[i].end, first[i].end));
    errors.push_back("rank " + std::to_string(rank) + " " + describe(where) +
                     " is summed in another order, or rounded elsewhere, than on rank 0; "
                     "expected the same bits");
    return;
  }
}

void check_races(const Execution& execution, const std::vector<Plan>& plans,
                 std::vector<std::string>& errors) {
  for (const Plan& plan : plans) {
    for (const auto& [first, second] : races(plan, execution.accesses(plan.rank), kMostErrors)) {
      if (errors.size() >= kMostErrors) return;
      const auto text = [&](const Access& access) {
        return describe(plan, access.step) + (access.write ? " writes " : " reads ") +
               execution.describe(access);
      };
      errors.push_back(text(first) + " while " + text(second) +
                       (first.step == second.step
                            ? "; expected parts of a step to touch separate elements"
                            : "; expected the later step to wait for the earlier one"));
    }
  }
}

}  // namespace

std::vector<std::string> check(const Topology& topology, const std::vector<Plan>& plans) {
  const StepGraph graph(topology, plans);
  std::vector<std::string> errors = graph.errors();
  if (errors.empty()) {
    const Spec& spec = plans[0].spec;
    const bool scaled = scale_of(spec, topology.size()).by != 1;
    const Range output{Space::output, 0, spec.count, spec.dtype};
    const Contributions meaning = contributions(spec, topology.size());
    Execution execution(topology, plans, graph, meaning.inputs);
    errors = misplaced(topology, plans, kMostErrors);
    const std::vector<std::string> found = execution.run(kMostErrors);
    errors.insert(errors.end(), found.begin(), found.end());
    check_races(execution, plans, errors);
    if (errors.empty()) {
      for (int rank = 0; rank < topology.size(); ++rank) {
        check_output(execution, output, meaning.outputs[rank], rank, spec, scaled, errors);
        if (spec.collective == Collective::barrier) check_barrier(execution, plans[rank], errors);
      }
    }
    if (errors.empty()) check_order(execution, spec, topology.size(), errors);
  }
  if (errors.size() > kMostErrors) errors.resize(kMostErrors);
  return errors;
}

}  // namespace hetcomm
