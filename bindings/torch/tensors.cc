#include "torch/tensors.h"

#include <algorithm>
#include <array>
#include <locale>
#include <string_view>

#include "base/status.h"

namespace hetcomm {
namespace {

// Torch cannot copy some dtypes (int4, bits16), but integers of their size.
at::Tensor copyable(const at::Tensor& tensor) {
  const Dtype dtype = dtype_of(tensor);
  if (dtype == Dtype::bytes1) return tensor.view(at::kByte);
  return dtype == Dtype::bytes2 ? tensor.view(at::kShort) : tensor;
}

int64_t count_of(const std::vector<at::Tensor>& list) {
  int64_t count = 0;
  for (const at::Tensor& tensor : list) count += tensor.numel();
  return count;
}

}  // namespace

void throw_invalid(const std::string& operation, const std::string& expected,
                   const std::string& got, const std::string& remedy) {
  throw Error(Code::invalid_argument,
              operation + ": expected " + expected + ", got " + got + "; " + remedy);
}

std::string describe(const at::Tensor& tensor) {
  std::ostringstream stream;
  stream.imbue(std::locale::classic());
  stream << tensor.scalar_type() << " tensor of shape " << tensor.sizes() << " and strides "
         << tensor.strides() << " on " << tensor.device();
  return stream.str();
}

Dtype dtype_of(const at::Tensor& tensor) {
  static const auto named = [] {
    std::array<const DtypeRow*, static_cast<size_t>(at::ScalarType::Undefined)> rows{};
    for (size_t type = 0; type < rows.size(); ++type) {
      const std::string_view name = c10::toString(static_cast<at::ScalarType>(type));
      for (const DtypeRow& row : kDtypeRows) {
        if (name == row.torch) rows[type] = &row;
      }
    }
    return rows;
  }();
  const auto type = static_cast<size_t>(tensor.scalar_type());
  if (type < named.size() && named[type] != nullptr) return named[type]->dtype;
  for (const DtypeRow& row : kDtypeRows) {
    const bool fits = row.bytes == static_cast<size_t>(tensor.element_size());
    if (row.kind == DtypeClass::moved && fits) return row.dtype;
  }
  throw Error(Code::invalid_argument, "expected elements of 1, 2, 4, 8 or 16 bytes, got " +
                                          std::string(c10::toString(tensor.scalar_type())));
}

void check_layout(const at::Tensor& tensor, const char* operation) {
  if (!tensor.defined()) throw_invalid(operation, "a tensor", "an undefined one", "pass a tensor");
  if (tensor.layout() != at::kStrided || tensor.is_nested()) {
    throw_invalid(
        operation, "a dense tensor",
        tensor.is_nested() ? "a nested one" : "one of layout " + c10::str(tensor.layout()),
        "convert it, for instance by to_dense()");
  }
}

// FSDP, for instance, frees storages, and tensors still name them.
void check_storage(const at::Tensor& tensor, const char* operation) {
  if (tensor.numel() == 0) return;
  const int64_t needed = tensor.storage_offset() * tensor.element_size() + extent(tensor);
  const auto held = tensor.has_storage() ? static_cast<int64_t>(tensor.storage().nbytes()) : needed;
  if (held < needed) {
    throw_invalid(
        operation,
        "a storage of at least " + std::to_string(needed) + " bytes for a " + describe(tensor),
        "one of " + std::to_string(held), "resize it, because it was freed or cut");
  }
  if (tensor.has_storage() &&
      tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr) {
    return;
  }
  throw_invalid(operation, "a tensor with memory", "a " + describe(tensor) + " without",
                "pass the tensor behind it, if it is a fake or a wrapper");
}

void check_tensor(const at::Tensor& tensor, const char* operation) {
  check_layout(tensor, operation);
  check_storage(tensor, operation);
}

int64_t extent(const at::Tensor& tensor) {
  int64_t last = tensor.numel() - 1;
  if (!tensor.is_contiguous()) {
    last = 0;
    for (int64_t i = 0; i < tensor.dim(); ++i) last += tensor.stride(i) * (tensor.size(i) - 1);
  }
  return (last + 1) * tensor.element_size();
}

void check_output(const at::Tensor& tensor, const char* operation) {
  if (tensor.layout() != at::kStrided || tensor.is_contiguous()) return;
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, size
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1) dimensions.emplace_back(tensor.stride(i), tensor.size(i));
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t last = 0;  // offset of the last element in the dimensions so far
  for (const auto& [stride, size] : dimensions) {
    if (stride <= last) {
      throw_invalid(operation, "an output whose elements have memory of their own",
                    "a " + describe(tensor), "call .contiguous() first");
    }
    last += stride * (size - 1);
  }
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* operation) {
  if (tensors.size() != 1) {
    throw_invalid(operation, "one tensor", std::to_string(tensors.size()), "call it once for each");
  }
  return tensors[0];
}

void check_list(const std::vector<at::Tensor>& list, const at::Tensor& like, int64_t size,
                const char* operation) {
  if (static_cast<int64_t>(list.size()) != size) {
    throw_invalid(operation, "a list of " + std::to_string(size) + " tensors (one for each rank)",
                  std::to_string(list.size()), "pass one tensor for each rank of the group");
  }
  for (const at::Tensor& tensor : list) {
    if (tensor.scalar_type() != like.scalar_type() || tensor.numel() != like.numel()) {
      throw_invalid(operation, "every tensor in the list to match the " + describe(like),
                    "a " + describe(tensor), "make all of one dtype and size");
    }
  }
}

void check_size(const at::Tensor& tensor, int64_t expected, const char* operation,
                const char* what) {
  if (tensor.numel() == expected) return;
  throw_invalid(std::string(operation) + ": " + what, std::to_string(expected) + " elements",
                std::to_string(tensor.numel()),
                "sizes are those of one rank times the group's size");
}

void check_same_dtype(const at::Tensor& a, const at::Tensor& b, const char* operation) {
  if (a.scalar_type() == b.scalar_type()) return;
  throw_invalid(
      operation, "input and output of one dtype",
      std::string(c10::toString(a.scalar_type())) + " and " + c10::toString(b.scalar_type()),
      "convert one of them");
}

bool is_row_major(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_neg() && !tensor.is_conj();
}

at::Tensor row_major_copy(const at::Tensor& tensor, at::Device device) {
  const at::Tensor copy = at::empty(tensor.sizes(), tensor.options().device(device));
  copy_elements(copy, tensor);
  return copy;
}

void copy_elements(const at::Tensor& to, const at::Tensor& from) {
  const at::NoGradGuard no_grad;
  copyable(to).copy_(copyable(from));
}

Flat flatten(const std::vector<at::Tensor>& list, at::Device device) {
  const char* next = static_cast<const char*>(list[0].const_data_ptr());
  bool direct = list[0].device() == device;
  for (const at::Tensor& tensor : list) {
    direct &= is_row_major(tensor) && tensor.const_data_ptr() == next;
    next += tensor.nbytes();
  }
  if (direct) return {list[0], true};
  return {at::empty({count_of(list)}, list[0].options().device(device)), false};
}

at::Tensor joined(const std::vector<at::Tensor>& list) {
  const Flat flat{at::empty({count_of(list)}, list[0].options()), false};
  copy_in(flat, list);
  return flat.tensor;
}

void copy_in(const Flat& flat, const std::vector<at::Tensor>& list) {
  copy_out(flat, list,
           [](const at::Tensor& tensor, const at::Tensor& part) { copy_elements(part, tensor); });
}

void copy_out(const Flat& flat, const std::vector<at::Tensor>& list, const Copy& copy) {
  if (flat.direct) return;
  int64_t offset = 0;
  for (const at::Tensor& tensor : list) {
    copy(tensor, flat.tensor.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

}  // namespace hetcomm
