#include <algorithm>

#include "torch/backend.h"
#include "torch/tensors.h"

namespace hetcomm {
namespace {

// Number of entries; then dtype and shape, which must be equal on all ranks.
at::Tensor layout(const at::Tensor& tensor) {
  std::vector<int64_t> layout = {tensor._nnz(), static_cast<int64_t>(tensor.scalar_type()),
                                 tensor.sparse_dim()};
  const at::IntArrayRef sizes = tensor.sizes();
  // Missing dimensions have size -1, so tensors with fewer dimensions differ.
  layout.insert(layout.end(), sizes.begin(), sizes.begin() + std::min<size_t>(sizes.size(), 8));
  layout.resize(11, -1);
  return at::tensor(layout, at::kLong);
}

// A copy, because torch ignores the stride of a dimension of size 1 when it calls a tensor
// contiguous.
at::Tensor bytes_of(const at::Tensor& tensor) {
  return row_major_copy(tensor, tensor.device()).view(-1).view(at::kByte);
}

// The calls of this thread have the codec of their group.
class WithoutCodec {
 public:
  WithoutCodec() { std::swap(before_, CallCodec::of_thread()); }
  ~WithoutCodec() { std::swap(before_, CallCodec::of_thread()); }

 private:
  CallCodec before_;
};

}  // namespace

// Every rank gathers the entries of all ranks, and sums entries of equal indices. One all_gather
// brings the layouts, and this call waits for them. A second one brings the entries: each rank
// sends as many bytes as the fullest tensor needs.
TorchBackend::WorkPointer TorchBackend::allreduce_sparse(Tensors& tensors,
                                                         const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = tensors.at(0);
  const auto check = [&] {
    const auto fits = [&](const at::Tensor& one) {
      return one.layout() == at::kSparse && one.device().is_cpu() &&
             one.scalar_type() == tensor.scalar_type() && one.sizes() == tensor.sizes();
    };
    const bool fit = std::all_of(tensors.begin(), tensors.end(), fits);
    const CodecSetting& codec = CallCodec::of_thread().setting;
    if (codec.lossy()) {
      throw_invalid("all_reduce of sparse tensors", "no lossy codec",
                    "codec " + name_of(codec) + ", which is for dense tensors",
                    "leave the codec out, or call to_dense() first");
    }
    if (fit && options.reduceOp.op_ == c10d::ReduceOp::SUM) {
      for (const at::Tensor& one : tensors) {
        check_tensor(one._indices(), "all_reduce of sparse tensors");
        check_tensor(one._values(), "all_reduce of sparse tensors");
      }
      return;
    }
    throw_invalid("all_reduce of sparse tensors",
                  "SUM, and COO tensors of one dtype and shape in host memory",
                  fit ? "another operation"
                      : "unlike ones, the first of layout " + c10::str(tensor.layout()) + " on " +
                            tensor.device().str(),
                  "call to_dense() first");
  };
  with_python_errors([&] { reporting_refusal(check); });
  const WithoutCodec plain;  // the gathered numbers are no elements of the user's
  const at::NoGradGuard no_grad;
  at::Tensor sum = tensor;
  for (size_t i = 1; i < tensors.size(); ++i) sum = sum + tensors[i];
  const at::Tensor mine = sum.coalesce();
  at::Tensor own = layout(mine);
  at::Tensor layouts = at::empty({size_, own.numel()}, own.options());
  c10d::AllgatherOptions gathering;
  gathering.timeout = options.timeout;
  _allgather_base(layouts, own, gathering)->wait();
  with_python_errors([&] {
    for (int rank = 0; rank < size_; ++rank) {
      if (layouts[rank].narrow(0, 1, own.numel() - 1).equal(own.narrow(0, 1, own.numel() - 1))) {
        continue;
      }
      throw Error(Status(Code::invalid_argument,
                         "all_reduce of sparse tensors: expected one dtype, shape and number of "
                         "sparse dimensions on all ranks, got others on rank " +
                             std::to_string(rank),
                         rank_, rank));
    }
  });
  const at::Tensor entries = layouts.select(1, 0).contiguous();
  const int64_t most = entries.max().item<int64_t>();
  // Of one entry.
  const int64_t index_bytes = mine.sparse_dim() * 8;
  const at::Tensor values = mine._values();
  const int64_t value_bytes =
      c10::multiply_integers(values.sizes().slice(1)) * static_cast<int64_t>(values.element_size());
  return run(
      "all_reduce", c10d::OpType::_ALLREDUCE_SPARSE, Collective::all_gather, options,
      [&](Call& call) {
        const at::Tensor row = at::zeros({most * (index_bytes + value_bytes)}, at::kByte);
        const int64_t filled = mine._nnz() * index_bytes;
        row.narrow(0, 0, filled).copy_(bytes_of(mine._indices().t()));
        row.narrow(0, most * index_bytes, mine._nnz() * value_bytes).copy_(bytes_of(values));
        const at::Tensor rows = at::empty({size_, row.numel()}, row.options());
        call.read_part(row);
        call.write_all(rows);
        call.set_outputs(tensors, [=] {
          Tensors all_indices, all_values;
          for (int64_t rank = 0; rank < rows.size(0); ++rank) {
            const int64_t count = entries[rank].item<int64_t>();
            auto part = [&](int64_t offset, int64_t bytes, at::ScalarType type) {
              return rows[rank].narrow(0, offset, bytes).clone().view(type);
            };
            all_indices.push_back(
                part(0, count * index_bytes, at::kLong).view({count, index_bytes / 8}).t());
            std::vector<int64_t> shape = values.sizes().vec();
            shape[0] = count;
            all_values.push_back(
                part(most * index_bytes, count * value_bytes, values.scalar_type()).view(shape));
          }
          const at::Tensor total =
              at::sparse_coo_tensor(at::cat(all_indices, 1), at::cat(all_values), mine.sizes())
                  .coalesce();
          for (const at::Tensor& each : tensors) each.copy_(total);
        });
      });
}

}  // namespace hetcomm
