#include <algorithm>
#include <numeric>

#include "torch/backend.h"
#include "torch/tensors.h"

namespace hetcomm {
namespace {

// How many elements go to, or come from, each rank. Splits are along the first dimension; a missing
// side is even.
std::vector<int64_t> elements(const at::Tensor& tensor, std::vector<int64_t> splits, int size,
                              const char* what) {
  const int64_t rows = tensor.dim() ? tensor.size(0) : 0;
  if (splits.empty() && rows % size == 0) splits.assign(size, rows / size);
  const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  if (static_cast<int>(splits.size()) != size || sum != rows ||
      std::any_of(splits.begin(), splits.end(), [](int64_t n) { return n < 0; })) {
    throw Error(Code::invalid_argument,
                std::string("all_to_all_single: expected ") + std::to_string(size) +
                    " split sizes that add up to the " + std::to_string(rows) + " rows of the " +
                    what + ", got " + std::to_string(splits.size()) + " that add up to " +
                    std::to_string(sum));
  }
  for (int64_t& split : splits) split *= rows ? tensor.numel() / rows : 1;
  return splits;
}

// Each rank knows its own row and column of the matrix, which is all that its plan needs.
void set_splits(Call& call, const std::vector<int64_t>& sends,
                const std::vector<int64_t>& receives) {
  const size_t size = call.size, rank = call.rank;
  call.spec.splits.assign(size * size, 0);
  for (size_t peer = 0; peer < size; ++peer) {
    call.spec.splits[rank * size + peer] = sends[peer];
    call.spec.splits[peer * size + rank] = receives[peer];
  }
}

}  // namespace

TorchBackend::WorkPointer TorchBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                      std::vector<int64_t>& output_splits,
                                                      std::vector<int64_t>& input_splits,
                                                      const c10d::AllToAllOptions& options) {
  return run(
      "all_to_all_single", c10d::OpType::ALLTOALL_BASE, Collective::all_to_all, options,
      [&](Call& call) {
        call.read(input);
        call.write(output);
        check_same_dtype(input, output, call.operation);
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
          return;
        }
        const auto sends = elements(input, input_splits, size_, "input");
        const auto receives = elements(output, output_splits, size_, "output");
        if (sends[rank_] != receives[rank_]) {
          throw Error(
              Code::invalid_argument,
              "all_to_all_single: expected equal split sizes from this rank to itself, got " +
                  std::to_string(sends[rank_]) + " sent and " + std::to_string(receives[rank_]) +
                  " received elements");
        }
        set_splits(call, sends, receives);
      });
}

TorchBackend::WorkPointer TorchBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                 const c10d::AllToAllOptions& options) {
  return run(
      "all_to_all", c10d::OpType::ALLTOALL, Collective::all_to_all, options, [&](Call& call) {
        if (static_cast<int>(inputs.size()) != size_ || static_cast<int>(outputs.size()) != size_) {
          throw Error(Code::invalid_argument, "all_to_all: expected " + std::to_string(size_) +
                                                  " inputs and outputs, got " +
                                                  std::to_string(inputs.size()) + " and " +
                                                  std::to_string(outputs.size()));
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
        check_size(outputs[rank_], inputs[rank_].numel(), "all_to_all: output from this rank");
        call.spec.dtype = dtype_of(inputs[0]);
        set_splits(call, sends, receives);
        call.read(joined(inputs));  // copied: inputs and outputs may be the same list
        call.write_flat(outputs);
      });
}

}  // namespace hetcomm
