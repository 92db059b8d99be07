// Where a plan applies the scale of its operation: each contribution is scaled exactly once, before
// the sum or after it.

#include "plan/builder.h"
#include "plan/lowering.h"
#include "plan/steps.h"

namespace hetcomm {

void PlanBuilder::place_scale() {
  if (!has_reduction(spec_.collective) || scale_of(spec_, topology_.size()).by == 1) return;
  const bool average = spec_.op == ReduceOp::average;
  // A native library has averages and scales. The CPU engine divides sums before it rounds.
  const bool one_island = topology_.islands().size() == 1 && topology_.size() > 1;
  island_scales_ = one_island && (average || topology_.native(0));
  output_scales_ = average && !island_scales_;
  if (average || island_scales_) return;
  const bool into_output = spec_.in_place || spec_.collective == Collective::all_reduce;
  const Space unscaled = contributions_;
  const Space scaled = into_output ? Space::output : Space::scratch;
  if (scaled == Space::scratch) {  // it is the first scratch, so it begins at 0
    scratch_on_all(buffer_counts(spec_, spec_.root, topology_.size()).input);
  }
  for (int rank = 0; rank < topology_.size(); ++rank) {
    const int64_t count = buffer_counts(spec_, rank, topology_.size()).input;
    scale(rank, elements(unscaled, 0, count), elements(scaled, 0, count));
  }
  contributions_ = scaled;
}

// Scales in parts, so that the next steps can begin with the first part.
void PlanBuilder::scale(int rank, const Range& source, const Range& target) {
  if (!builds(rank) || target.count == 0) return;
  for_parts(target.count, spec_.dtype, [&](int64_t offset, int64_t count) {
    append(rank, {.kind = &steps::reduce,
                  .sources = {source.part(offset, count)},
                  .target = target.part(offset, count),
                  .scaled = true});
  });
}

void PlanBuilder::scale_outputs(int rank) {
  // A reduce in place leaves a result on the root only.
  if (spec_.collective == Collective::reduce && rank != spec_.root) return;
  const Range whole = output(0, buffer_counts(spec_, rank, topology_.size()).output);
  scale(rank, whole, whole);
}

}  // namespace hetcomm
