#include <algorithm>
#include <numeric>

#include "torch/backend.h"
#include "torch/options.h"
#include "torch/tensors.h"

namespace hetcomm {

TorchBackend::WorkPointer TorchBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                      std::vector<int64_t>& output_splits,
                                                      std::vector<int64_t>& input_splits,
                                                      const c10d::AllToAllOptions& options) {
  return with_python_errors([&] {
    check_tensor(input, "all_to_all_single");
    check_tensor(output, "all_to_all_single");
    check_same_dtype(input, output, "all_to_all_single");
    Call call{.type = c10d::OpType::ALLTOALL_BASE, .timeout = options.timeout};
    call.spec.collective = Collective::all_to_all;
    call.spec.dtype = dtype_of(input);
    if (input_splits.empty() && output_splits.empty()) {
      if (input.numel() % size_ != 0) {
        throw Error(Code::invalid_argument,
                    "all_to_all_single: expected a size divisible by the group's " +
                        std::to_string(size_) + " ranks, got " + std::to_string(input.numel()) +
                        " elements; give input_split_sizes and output_split_sizes");
      }
      check_size(output, input.numel(), "all_to_all_single: output");
      call.spec.count = input.numel() / size_;
    } else {
      // Splits are along the first dimension; a missing side is even.
      auto elements = [this](const at::Tensor& tensor, const std::vector<int64_t>& splits,
                             const char* what) {
        const int64_t rows = tensor.dim() ? tensor.size(0) : 0;
        const int64_t row = rows ? tensor.numel() / rows : 1;
        std::vector<int64_t> counts = splits;
        if (counts.empty() && rows % size_ == 0) counts.assign(size_, rows / size_);
        const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
        if (static_cast<int>(counts.size()) != size_ || sum != rows ||
            std::any_of(counts.begin(), counts.end(), [](int64_t n) { return n < 0; })) {
          throw Error(Code::invalid_argument,
                      std::string("all_to_all_single: expected ") + std::to_string(size_) +
                          " split sizes that add up to the " + std::to_string(rows) +
                          " rows of the " + what + ", got " + std::to_string(counts.size()) +
                          " that add up to " + std::to_string(sum));
        }
        for (int64_t& count : counts) count *= row;
        return counts;
      };
      const auto sends = elements(input, input_splits, "input");
      const auto receives = elements(output, output_splits, "output");
      // Each rank knows its own row and column of the matrix, which is all that its plan needs.
      call.spec.splits.assign(static_cast<size_t>(size_) * size_, 0);
      for (int peer = 0; peer < size_; ++peer) {
        call.spec.splits[static_cast<size_t>(rank_) * size_ + peer] = sends[peer];
        call.spec.splits[static_cast<size_t>(peer) * size_ + rank_] = receives[peer];
      }
      if (sends[rank_] != receives[rank_]) {
        throw Error(Code::invalid_argument,
                    "all_to_all_single: expected equal split sizes from this rank to itself, got " +
                        std::to_string(sends[rank_]) + " sent and " +
                        std::to_string(receives[rank_]) + " received elements");
      }
    }
    call.input = input.data_ptr();
    call.output = output.data_ptr();
    call.will_wait = waits(options);
    call.keep = {input, output};
    call.outputs = {output};
    return start(std::move(call));
  });
}

TorchBackend::WorkPointer TorchBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                 const c10d::AllToAllOptions& options) {
  return with_python_errors([&] {
    if (static_cast<int>(inputs.size()) != size_ || static_cast<int>(outputs.size()) != size_) {
      throw Error(Code::invalid_argument,
                  "all_to_all: expected " + std::to_string(size_) + " inputs and outputs, got " +
                      std::to_string(inputs.size()) + " and " + std::to_string(outputs.size()));
    }
    Call call{.type = c10d::OpType::ALLTOALL, .timeout = options.timeout};
    call.spec.collective = Collective::all_to_all;
    call.spec.dtype = dtype_of(inputs[0]);
    call.spec.splits.assign(static_cast<size_t>(size_) * size_, 0);
    Tensors flat_inputs, flat_outputs;
    for (int peer = 0; peer < size_; ++peer) {
      check_tensor(inputs[peer], "all_to_all");
      check_tensor(outputs[peer], "all_to_all");
      check_same_dtype(inputs[peer], inputs[0], "all_to_all");
      check_same_dtype(outputs[peer], inputs[0], "all_to_all");
      call.spec.splits[static_cast<size_t>(rank_) * size_ + peer] = inputs[peer].numel();
      call.spec.splits[static_cast<size_t>(peer) * size_ + rank_] = outputs[peer].numel();
      flat_inputs.push_back(inputs[peer].view(-1));
      flat_outputs.push_back(outputs[peer].view(-1));
    }
    check_size(outputs[rank_], inputs[rank_].numel(), "all_to_all: output from this rank");
    const at::Tensor input = at::cat(flat_inputs);
    const at::Tensor output =
        at::empty({std::accumulate(outputs.begin(), outputs.end(), int64_t{0},
                                   [](int64_t sum, const auto& one) { return sum + one.numel(); })},
                  input.options());
    call.input = input.data_ptr();
    call.output = output.data_ptr();
    call.will_wait = waits(options);
    call.keep = {input, output};
    call.outputs = outputs;
    call.finish = [output, flat_outputs] {
      int64_t offset = 0;
      for (const at::Tensor& part : flat_outputs) {
        part.copy_(output.narrow(0, offset, part.numel()));
        offset += part.numel();
      }
    };
    return start(std::move(call));
  });
}

}  // namespace hetcomm
