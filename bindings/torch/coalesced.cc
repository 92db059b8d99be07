// Collectives on lists of tensors. Tensors of one dtype are one buffer, copied in and out unless
// the tensors already lie in one piece.

#include <algorithm>
#include <map>

#include "torch/backend.h"
#include "torch/combined_work.h"
#include "torch/tensors.h"

namespace hetcomm {
namespace {

using Tensors = TorchBackend::Tensors;

// The operations that a thread has started since startCoalescing().
struct Batch {
  CombinedWork::Parts works;
  std::exception_ptr failure;  // of the first message that could not be posted
};
// By group. A batch stays open if torch does not end it.
thread_local std::map<uint64_t, Batch> open_batches;

// A message that was not posted.
struct FailedWork : c10d::Work {
  FailedWork(int rank, const std::exception_ptr& why) : c10d::Work(rank) { finish(why); }
};

// Indices of tensors of one dtype, in the order in which the dtypes appear.
std::vector<std::vector<size_t>> by_dtype(const Tensors& tensors) {
  std::vector<std::vector<size_t>> batches;
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto same = [&](const std::vector<size_t>& batch) {
      return tensors[batch[0]].scalar_type() == tensors[i].scalar_type();
    };
    auto batch = std::find_if(batches.begin(), batches.end(), same);
    if (batch == batches.end()) batch = batches.insert(batch, {{}});
    batch->push_back(i);
  }
  return batches;
}

Tensors pick(const Tensors& tensors, const std::vector<size_t>& indices) {
  Tensors picked;
  for (size_t i : indices) picked.push_back(tensors[i]);
  return picked;
}

// Each whole has a block for every rank, and `rows` has a row for every rank. Calls `copy` with
// each whole and the columns of `rows` for it.
template <typename Copy>
void for_each_block(const at::Tensor& rows, const Tensors& wholes, const Copy& copy) {
  int64_t offset = 0;
  for (const at::Tensor& whole : wholes) {
    const int64_t width = whole.numel() / rows.size(0);
    copy(rows.narrow(1, offset, width), whole);
    offset += width;
  }
}

void copy_block_in(const at::Tensor& row, const at::Tensor& whole) {
  const at::Tensor block = is_row_major(whole) ? whole : row_major_copy(whole, whole.device());
  copy_elements(row, block.view(row.sizes()));
}

void copy_block_out(const at::Tensor& row, const at::Tensor& whole) {
  if (is_row_major(whole)) return copy_elements(whole.view(row.sizes()), row);
  copy_elements(whole, row_major_copy(row, row.device()).view(whole.sizes()));
}

at::Tensor empty_rows(const at::Tensor& row, int rows) {
  return at::empty({rows, row.numel()}, row.options());
}

void check_pairs(Call& call, const Tensors& parts, const Tensors& wholes) {
  for (size_t i = 0; i < parts.size(); ++i) {
    call.check(parts[i]);
    call.check(wholes[i]);
    check_same_dtype(parts[i], wholes[i], call.operation);
    check_size(wholes[i], parts[i].numel() * call.size, call.operation, "tensor of all ranks");
  }
}

void check_counts(size_t inputs, size_t outputs, const char* operation) {
  if (inputs == outputs && inputs > 0) return;
  throw_invalid(operation, "as many inputs as outputs, and at least one",
                std::to_string(inputs) + " and " + std::to_string(outputs),
                "pass one output for each input");
}

}  // namespace

template <typename CallOptions, typename Check, typename Prepare>
TorchBackend::WorkPointer TorchBackend::run_coalesced(const char* operation, c10d::OpType type,
                                                      Collective collective,
                                                      const CallOptions& options,
                                                      const Tensors& tensors, const Check& check,
                                                      const Prepare& prepare) {
  return with_python_errors([&] {
    std::vector<Call> calls;
    const auto describe_all = [&] {
      check();
      for (const std::vector<size_t>& batch : by_dtype(tensors)) {
        Call& call = calls.emplace_back(new_call(operation, type, collective, options));
        prepare(call, batch);
        communicator_->validate(call.spec);
      }
      Tensors outputs;  // of all dtypes
      for (const Call& call : calls) {
        outputs.insert(outputs.end(), call.outputs.begin(), call.outputs.end());
      }
      if (calls.size() > 1) check_outputs(outputs, operation);
    };
    try {
      reporting_refusal(describe_all);
    } catch (...) {
      open_batches.erase(id_);  // torch ends no batch whose call raised
      throw;
    }
    CombinedWork::Parts works;
    for (Call& call : calls) works.push_back(submit_collective(std::move(call)));
    return combined(std::move(works), rank_);
  });
}

TorchBackend::WorkPointer TorchBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  constexpr const char* operation = "all_reduce_coalesced";
  return run_coalesced(
      operation, c10d::OpType::ALLREDUCE_COALESCED, Collective::all_reduce, options, tensors,
      [&] { check_counts(tensors.size(), tensors.size(), operation); },
      [&](Call& call, const std::vector<size_t>& batch) {
        call.in_place_coalesced(pick(tensors, batch));
        call.reduce_by(options.reduceOp);
      });
}

TorchBackend::WorkPointer TorchBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  constexpr const char* operation = "all_gather_into_tensor_coalesced";
  return run_coalesced(
      operation, c10d::OpType::COALESCED, Collective::all_gather, options, inputs,
      [&] { check_counts(inputs.size(), outputs.size(), operation); },
      [&](Call& call, const std::vector<size_t>& batch) {
        const Tensors parts = pick(inputs, batch), wholes = pick(outputs, batch);
        check_pairs(call, parts, wholes);
        const at::Tensor part = joined(parts), rows = empty_rows(part, size_);
        call.read_part(part);
        call.write_all(rows);
        call.inputs = parts;
        call.set_outputs(wholes, [=] { for_each_block(rows, wholes, copy_block_out); });
      });
}

TorchBackend::WorkPointer TorchBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  constexpr const char* operation = "reduce_scatter_tensor_coalesced";
  return run_coalesced(
      operation, c10d::OpType::COALESCED, Collective::reduce_scatter, options, outputs,
      [&] { check_counts(inputs.size(), outputs.size(), operation); },
      [&](Call& call, const std::vector<size_t>& batch) {
        const Tensors parts = pick(outputs, batch), wholes = pick(inputs, batch);
        check_pairs(call, parts, wholes);
        const at::Tensor part = joined(parts), rows = empty_rows(part, size_);
        for_each_block(rows, wholes, copy_block_in);
        call.write_part(part);
        call.read_all(rows);
        call.reduce_by(options.reduceOp);
        call.inputs = wholes;
        call.set_outputs(parts, [=] { copy_out({part}, parts, copy_elements); });
      });
}

// outputs[rank][i] is what `rank` contributes as its i-th input.
TorchBackend::WorkPointer TorchBackend::allgather_coalesced(std::vector<Tensors>& outputs,
                                                            Tensors& inputs,
                                                            const c10d::AllgatherOptions& options) {
  constexpr const char* operation = "all_gather_coalesced";
  const auto check = [&] {
    check_counts(inputs.size(), inputs.size(), operation);
    if (static_cast<int>(outputs.size()) != size_) {
      throw_invalid(operation, "a list of outputs for each of " + std::to_string(size_) + " ranks",
                    std::to_string(outputs.size()), "pass one list for each rank of the group");
    }
    for (const Tensors& list : outputs) check_counts(inputs.size(), list.size(), operation);
  };
  return run_coalesced(operation, c10d::OpType::COALESCED, Collective::all_gather, options, inputs,
                       check, [&](Call& call, const std::vector<size_t>& batch) {
                         const Tensors parts = pick(inputs, batch);
                         for (const at::Tensor& part : parts) call.check(part);
                         std::vector<Tensors> lists;
                         Tensors all;
                         for (const Tensors& list : outputs) {
                           lists.push_back(pick(list, batch));
                           for (size_t i = 0; i < parts.size(); ++i) {
                             const at::Tensor& output = all.emplace_back(lists.back()[i]);
                             call.check(output);
                             check_same_dtype(parts[i], output, operation);
                             check_size(output, parts[i].numel(), operation, "output");
                           }
                         }
                         const at::Tensor part = joined(parts), rows = empty_rows(part, size_);
                         call.read_part(part);
                         call.write_all(rows);
                         call.inputs = parts;
                         call.set_outputs(all, [=] {
                           for (size_t rank = 0; rank < lists.size(); ++rank) {
                             copy_out({rows[static_cast<int64_t>(rank)]}, lists[rank],
                                      copy_elements);
                           }
                         });
                       });
}

void TorchBackend::startCoalescing() { open_batches[id_] = {}; }

TorchBackend::WorkPointer TorchBackend::endCoalescing() {
  auto batch = open_batches.extract(id_);
  if (!batch.empty() && batch.mapped().failure) std::rethrow_exception(batch.mapped().failure);
  return with_python_errors([&] {
    if (batch.empty()) {
      throw_invalid("endCoalescing", "startCoalescing() of this thread first", "none",
                    "call it before the batch");
    }
    return combined(std::move(batch.mapped().works), rank_);
  });
}

TorchBackend::WorkPointer TorchBackend::add_to_batch(WorkPointer work) const {
  const auto batch = open_batches.find(id_);
  if (batch != open_batches.end()) batch->second.works.push_back(work);
  return work;
}

// If a call in a batch raised at once, torch would collect later calls of the group without making
// them. So the end of the batch throws the first failure, and later messages are not posted.
TorchBackend::WorkPointer TorchBackend::start_message(const std::function<WorkPointer()>& start) {
  const auto begin = [&] {
    communicator_->check_process();
    return start();
  };
  const auto batch = open_batches.find(id_);
  if (batch == open_batches.end()) return with_python_errors(begin);
  Batch& open = batch->second;
  if (!open.failure) {
    try {
      return with_python_errors(begin);
    } catch (...) {
      open = {{}, std::current_exception()};
    }
  }
  return c10::make_intrusive<FailedWork>(rank_, open.failure);
}

}  // namespace hetcomm
