#include "plan/overlap.h"

#include "base/status.h"

namespace hetcomm {

bool overlap(const void* a, int64_t bytes_of_a, const void* b, int64_t bytes_of_b) {
  const auto* const first = static_cast<const char*>(a);
  const auto* const second = static_cast<const char*>(b);
  return bytes_of_a > 0 && bytes_of_b > 0 && first < second + bytes_of_b &&
         second < first + bytes_of_a;
}

bool allows_in_place(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce ||
         collective == Collective::broadcast;
}

void check_apart(const Spec& spec, int rank, int size, const void* input, const void* output) {
  if (spec.in_place) return;
  const BufferCounts counts = buffer_counts(spec, rank, size);
  const auto bytes = static_cast<int64_t>(size_of(spec.dtype));
  if (!overlap(input, counts.input * bytes, output, counts.output * bytes)) return;
  // An all_to_all of one rank alone moves nothing but the rank's own block.
  const bool moves_own_block =
      !allows_in_place(spec.collective) && (spec.collective != Collective::all_to_all || size == 1);
  const int64_t own = rank * spec.count * bytes;
  const int64_t behind = static_cast<const char*>(output) - static_cast<const char*>(input);
  if (moves_own_block && own == (counts.input < counts.output ? -behind : behind)) return;
  std::string expected = "an output apart from the input";
  if (allows_in_place(spec.collective)) expected += ", or the input itself";
  if (moves_own_block) {
    expected += ", or one of both as the block of rank " + std::to_string(rank) +
                " in the other, which begins at byte " + std::to_string(own);
  }
  throw Error(Status(Code::invalid_argument,
                     describe(spec) + ": expected " + expected +
                         "; got one that overlaps it and begins " + std::to_string(behind) +
                         " bytes behind it; copy one of them",
                     rank));
}

}  // namespace hetcomm
