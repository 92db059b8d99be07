#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include "comm/call_codec.h"
#include "comm/communicator.h"
#include "core/array.h"
#include "python/error_text.h"

namespace hetcomm {

using SharedArray = std::shared_ptr<Array>;

// Calls `prepare`, and tells its error to the other ranks, which may wait for this rank's call.
// Without NotPacked: Python may copy the array.
template <typename Prepare>
void reporting_refusal(Communicator& communicator, const Prepare& prepare) {
  try {
    prepare();
  } catch (const NotPacked&) {
    throw;
  } catch (const Error& error) {
    communicator.report_refusal(error.status());
    throw;
  } catch (const pybind11::error_already_set& error) {
    communicator.report_refusal(
        Status(Code::invalid_argument, text_of(error), communicator.rank()));
    throw;
  }
}

// Null for None. See Array.
SharedArray array_of(pybind11::handle object, const char* role, bool writable,
                     pybind11::handle dlpack_stream);

// Throws Error(invalid_argument) if the communicator does not work on such memory.
void check_place(const Communicator& communicator, Collective collective, const Array& array);

// The splits of the rows of an all_to_all's input and output; an empty list means equal splits.
struct RowSplits {
  std::vector<int64_t> input, output;
};

// A collective of Python arrays. Made with the interpreter's lock.
struct ArrayCollective {
  SharedArray input, output;  // null if this rank has none
  Spec spec;

  // Throws Error(invalid_argument) for arrays that do not fit the collective or each other, and
  // tells the other ranks, which may wait. Throws NotPacked for an array that the caller may copy.
  ArrayCollective(Communicator& communicator, Collective collective, pybind11::handle input,
                  pybind11::handle output, ReduceOp op, double factor, int root,
                  pybind11::handle dlpack_stream, const std::optional<RowSplits>& splits = {});

  // See Communicator::try_submit().
  std::optional<Work> try_submit(Communicator& communicator,
                                 const Communicator::CallOptions& options) const {
    if (spec.feedback) return std::nullopt;
    return communicator.try_submit(spec, input ? input->data() : nullptr,
                                   output ? output->data() : nullptr, options);
  }
  Work submit(Communicator& communicator, const Communicator::CallOptions& options) const {
    if (spec.feedback) return submit_with(communicator, with_residual(communicator, options));
    return submit_with(communicator, options);
  }

 private:
  // Throws Error(invalid_argument), and tells the other ranks.
  Communicator::CallOptions with_residual(Communicator& communicator,
                                          Communicator::CallOptions options) const;
  Work submit_with(Communicator& communicator, const Communicator::CallOptions& options) const {
    return communicator.submit(spec, input ? input->data() : nullptr,
                               output ? output->data() : nullptr, options);
  }
};

// The stream of the call waits for the work that fills the arrays. Null arrays count as filled.
void await_arrays(const Communicator& communicator, const Communicator::CallOptions& options,
                  std::initializer_list<const Array*> arrays);

// `stream`: the address of a stream of the device. Throws Error(invalid_argument).
Communicator::CallOptions options_of(bool will_wait, std::optional<double> timeout,
                                     std::optional<uintptr_t> stream);

// Keeps the memory until the operation is done, even if Python drops the work.
template <typename... Memory>
Work keeping(Work work, const std::shared_ptr<Memory>&... memory) {
  ((memory ? work.keep_alive(memory) : void()), ...);
  return work;
}

}  // namespace hetcomm
