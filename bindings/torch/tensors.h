#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "plan/plan.h"

namespace hetcomm {

// hetcomm's dtype for a tensor: one that can be reduced where torch's can, else plain bytes.
Dtype dtype_of(const at::Tensor& tensor);
// "float tensor of shape [2] and strides [1] on cpu".
std::string describe(const at::Tensor& tensor);

// The tensor must be dense, of any strides; throws Error(invalid_argument) that names the
// operation, what was expected and what came. Where it may be, Home says.
void check_tensor(const at::Tensor& tensor, const char* operation);
// No two of its elements may share memory.
void check_output(const at::Tensor& tensor, const char* operation);
// Exactly one tensor, as torch's single-device interface passes it.
const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* operation);
// `list` holds `size` tensors of the type and element count of `like`.
void check_list(const std::vector<at::Tensor>& list, const at::Tensor& like, int64_t size,
                const char* operation);

void check_size(const at::Tensor& tensor, int64_t expected, const std::string& what);
void check_same_dtype(const at::Tensor& a, const at::Tensor& b, const char* operation);

// Whether its memory is its elements in row-major order, which is how they travel.
bool is_row_major(const at::Tensor& tensor);
at::Tensor row_major_copy(const at::Tensor& tensor, at::Device device);
// Between tensors of one shape and dtype, whatever their strides.
void copy_elements(const at::Tensor& to, const at::Tensor& from);

// One contiguous tensor on `device` for a list of tensors of one dtype: the list's own memory when
// it lies there in one piece (`direct`), else newly allocated, uninitialised.
struct Flat {
  at::Tensor tensor;
  bool direct = false;
};
Flat flatten(const std::vector<at::Tensor>& list, at::Device device);
// A copy of all, one after the other.
at::Tensor joined(const std::vector<at::Tensor>& list);
void copy_in(const Flat& flat, const std::vector<at::Tensor>& list);
using Copy = std::function<void(const at::Tensor& to, const at::Tensor& from)>;
void copy_out(const Flat& flat, const std::vector<at::Tensor>& list, const Copy& copy);

}  // namespace hetcomm
