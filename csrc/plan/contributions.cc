#include "plan/contributions.h"

#include "base/status.h"

namespace hetcomm {
namespace {

int64_t bytes_of(const Spec& spec, int64_t count) {
  return count * static_cast<int64_t>(size_of(spec.dtype));
}

// The start of each block in the concatenated inputs of an all-to-all, by sender and receiver.
std::vector<int64_t> block_starts(const Spec& spec, int size) {
  std::vector<int64_t> starts{0};
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      starts.push_back(starts.back() + bytes_of(spec, spec.block(from, to, size)));
    }
  }
  return starts;
}

void all_to_all(const Spec& spec, int size, Contributions& result) {
  const std::vector<int64_t> starts = block_starts(spec, size);
  for (int rank = 0; rank < size; ++rank) {
    const int64_t first = starts[rank * size];
    append(result.inputs[rank], {0, starts[(rank + 1) * size] - first, first, rank});
    int64_t at = 0;
    for (int from = 0; from < size; ++from) {
      const int64_t start = starts[from * size + rank];
      const int64_t count = starts[from * size + rank + 1] - start;
      append(result.outputs[rank], {at, at + count, start, from});
      at += count;
    }
  }
}

}  // namespace

Contributions contributions(const Spec& spec, int size) {
  Contributions result{std::vector<Extents>(size), std::vector<Extents>(size)};
  const int64_t count = bytes_of(spec, spec.count), all = count * size;
  const int root = spec.root, every = Contributions::every;
  if (spec.collective == Collective::all_to_all) all_to_all(spec, size, result);
  for (int rank = 0; rank < size; ++rank) {
    Extents &in = result.inputs[rank], &out = result.outputs[rank];
    const bool is_root = rank == root;
    const int64_t mine = rank * count;
    switch (spec.collective) {
      case Collective::all_reduce:
        append(in, {0, count, 0, rank});
        append(out, {0, count, 0, every});
        break;
      case Collective::reduce:
        append(in, {0, count, 0, rank});
        if (is_root) append(out, {0, count, 0, every});
        break;
      case Collective::broadcast:
        if (is_root) append(in, {0, count, 0, root});
        append(out, {0, count, 0, root});
        break;
      case Collective::reduce_scatter:
        append(in, {0, all, 0, rank});
        append(out, {0, count, mine, every});
        break;
      case Collective::scatter:
        if (is_root) append(in, {0, all, 0, root});
        append(out, {0, count, mine, root});
        break;
      case Collective::all_gather:
      case Collective::gather:
        append(in, {0, count, mine, rank});
        for (int from = 0; from < size; ++from) {
          if (spec.collective == Collective::gather && !is_root) break;
          append(out, {from * count, (from + 1) * count, from * count, from});
        }
        break;
      case Collective::all_to_all:
      case Collective::barrier:
        break;
      case Collective::send:
      case Collective::recv:
        throw Error(Code::invalid_argument,
                    std::string("expected a collective of all ranks to check; got ") +
                        name(spec.collective));
    }
  }
  return result;
}

}  // namespace hetcomm
