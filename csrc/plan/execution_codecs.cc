// The part of Execution that knows encoded elements and residuals.
#include <algorithm>

#include "plan/execution.h"

namespace hetcomm {

// Whether the value is encoded as the range says.
bool Execution::has_codec(int step, const char* verb, const Range& range, const Extents& value) {
  for (const Extent& extent : value) {
    if (extent.term < 0 || terms_.codec(extent.term) == range.codec) continue;
    report(step, verb + hetcomm::describe(range) + "; expected " +
                     (range.codec ? "elements of its codec" : "plain elements") + ", got " +
                     describe(extent));
    return false;
  }
  return true;
}

// Encoded elements are known as a whole. Their memory has no symbols.
void Execution::load_encoded(int step, const Range& range, Extents& value) {
  const int rank = graph_.rank_of(step);
  const auto& encoded = encoded_[kSpaces * rank + buffer(range.space)];
  const auto whole = encoded.find(range.offset);
  if (whole != encoded.end() && same_place(whole->second.range, range)) {
    value = whole->second.value;
    if (has_codec(step, "reads ", range, value)) return;
  } else {
    read(rank, range, value);
    const bool plain = std::any_of(value.begin(), value.end(),
                                   [](const Extent& extent) { return extent.term != Terms::none; });
    report(step, "reads " + hetcomm::describe(range) + "; expected " +
                     (plain ? "elements of its codec, got " + describe(value[0])
                            : "all that one step encoded"));
  }
  value = {{0, range.plain_bytes(), 0, Terms::none}};
}

// The encoded elements in a part of the range; null if there are none.
const Extents* Execution::encoded_in(int rank, const Range& range) const {
  for (const auto& [offset, encoded] : encoded_[kSpaces * rank + buffer(range.space)]) {
    if (offset < range.end() && encoded.range.end() > range.offset) return &encoded.value;
  }
  return nullptr;
}

void Execution::decode(int step, const Range& range, Extents& value) {
  for (Extent& extent : value) {
    if (extent.term == Terms::none) continue;
    const int term = terms_.decode(extent.term, range.codec);
    if (term == Terms::none) {
      return report(step, "decodes " + hetcomm::describe(range) + "; got " + describe(extent));
    }
    extent.term = term;
  }
}

// Each element of the residual belongs to the same element of the value, and to one step, or a loss
// would be sent twice.
void Execution::update_residual(int step, const Extents& value) {
  const Step& at = graph_.step(step);
  const bool lossy = at.target.codec && !at.target.codec->lossless();
  if (at.sources.size() != (spec_.feedback && lossy ? 2 : 1)) {
    return report(step, "expected " + std::string(spec_.feedback && lossy ? "a" : "no") +
                            " residual; got " + std::to_string(at.sources.size()) + " sources");
  }
  if (at.sources.size() == 1) return;
  const Range& residual = at.sources[1];
  const int rank = graph_.rank_of(step);
  if (residual.space != Space::residual || residual.dtype != Dtype::float32 ||
      residual.count != at.sources[0].count) {
    return report(step, "expected a residual of as many elements as second source; got " +
                            hetcomm::describe(residual));
  }
  if (!reachable(step, residual, "updates ")) return;
  for (const Extent& extent : value) {
    const int64_t first = residual.offset / kResidualBytes * element_ + extent.begin;
    if (extent.term == Terms::none || extent.index == first) continue;
    return report(step, "updates " + hetcomm::describe(residual) + "; expected the residual of " +
                            describe(extent));
  }
  bool again = false;
  updated_[rank].each(residual, [&](bool updated, int64_t, int64_t) { again |= updated; });
  if (again) report(step, "updates " + hetcomm::describe(residual) + " again; expected once");
  updated_[rank].assign(residual, true);
}

}  // namespace hetcomm
