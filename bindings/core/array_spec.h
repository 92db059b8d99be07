#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "core/array.h"

namespace hetcomm {

using SharedArray = std::shared_ptr<const Array>;

// Null for None. See Array.
SharedArray array_of(pybind11::handle object, const char* role, bool writable,
                     pybind11::handle dlpack_stream);

// Throws Error(invalid_argument) unless the memory is what the communicator works on.
void check_place(const Communicator& communicator, Collective collective, const Array& array);

// How the rows of an all_to_all's input and output are split; an empty one is even. Without any of
// them all blocks are equal.
struct RowSplits {
  std::vector<int64_t> input, output;
};

// A collective of Python arrays. Made with the interpreter's lock.
struct ArrayCollective {
  SharedArray input, output;  // null where this rank has none, or gives none
  Spec spec;

  // Throws Error(invalid_argument) for arrays that do not fit the collective or each other, and has
  // the other ranks told, since they may wait; NotPacked of an array that the caller may copy.
  ArrayCollective(Communicator& communicator, Collective collective, pybind11::handle input,
                  pybind11::handle output, ReduceOp op, double factor, int root,
                  pybind11::handle dlpack_stream, const std::optional<RowSplits>& splits = {});

  // See Communicator::try_submit().
  std::optional<Work> try_submit(Communicator& communicator,
                                 const Communicator::CallOptions& options) const {
    return communicator.try_submit(spec, input ? input->data() : nullptr,
                                   output ? output->data() : nullptr, options);
  }
  Work submit(Communicator& communicator, const Communicator::CallOptions& options) const {
    return communicator.submit(spec, input ? input->data() : nullptr,
                               output ? output->data() : nullptr, options);
  }
};

// Lets the arrays go when the operation is done, whether or not anybody keeps the work.
Work holding(Work work, const SharedArray& a, const SharedArray& b = nullptr);

}  // namespace hetcomm
