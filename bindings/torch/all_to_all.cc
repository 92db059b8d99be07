#include "plan/splits.h"
#include "torch/backend.h"
#include "torch/tensors.h"

namespace hetcomm {
namespace {

// In elements. Splits are along the first dimension. Without splits the parts are equal.
std::vector<int64_t> part_sizes(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                                int size, const char* what) {
  return split_elements(tensor.dim() ? tensor.size(0) : 0, tensor.numel(), splits, size,
                        "all_to_all_single", what);
}

}  // namespace

TorchBackend::WorkPointer TorchBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                      std::vector<int64_t>& output_splits,
                                                      std::vector<int64_t>& input_splits,
                                                      const c10d::AllToAllOptions& options) {
  return run("all_to_all_single", c10d::OpType::ALLTOALL_BASE, Collective::all_to_all, options,
             [&](Call& call) {
               call.read(input);
               call.write(output);
               check_same_dtype(input, output, call.operation);
               call.spec.dtype = dtype_of(input);
               if (input_splits.empty() && output_splits.empty()) {
                 if (input.numel() % size_ != 0) {
                   throw_invalid(
                       call.operation,
                       "a size divisible by the group's " + std::to_string(size_) + " ranks",
                       std::to_string(input.numel()) + " elements",
                       "give input_split_sizes and output_split_sizes");
                 }
                 check_size(output, input.numel(), call.operation, "output");
                 call.spec.count = input.numel() / size_;
                 return;
               }
               const auto sends = part_sizes(input, input_splits, size_, "input");
               const auto receives = part_sizes(output, output_splits, size_, "output");
               set_splits(call.spec, rank_, sends, receives, "all_to_all_single");
             });
}

TorchBackend::WorkPointer TorchBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                 const c10d::AllToAllOptions& options) {
  return run(
      "all_to_all", c10d::OpType::ALLTOALL, Collective::all_to_all, options, [&](Call& call) {
        if (static_cast<int>(inputs.size()) != size_ || static_cast<int>(outputs.size()) != size_) {
          throw_invalid(call.operation, std::to_string(size_) + " inputs and outputs",
                        std::to_string(inputs.size()) + " and " + std::to_string(outputs.size()),
                        "pass one of each for each rank of the group");
        }
        std::vector<int64_t> sends, receives;
        for (int peer = 0; peer < size_; ++peer) {
          call.check(inputs[peer]);
          call.check(outputs[peer]);
          check_same_dtype(inputs[peer], inputs[0], call.operation);
          check_same_dtype(outputs[peer], inputs[0], call.operation);
          sends.push_back(inputs[peer].numel());
          receives.push_back(outputs[peer].numel());
        }
        check_size(outputs[rank_], inputs[rank_].numel(), call.operation, "output from this rank");
        call.spec.dtype = dtype_of(inputs[0]);
        set_splits(call.spec, rank_, sends, receives, "all_to_all");
        call.read(joined(inputs));  // a copy: inputs and outputs may be the same list
        call.write_flat(outputs);
      });
}

}  // namespace hetcomm
