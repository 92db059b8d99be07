#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "plan/plan.h"

namespace hetcomm {

// Throws Error(invalid_argument): "OPERATION: expected EXPECTED, got GOT; REMEDY".
[[noreturn]] void throw_invalid(const std::string& operation, const std::string& expected,
                                const std::string& got, const std::string& remedy);

// hetcomm's dtype for a tensor: the same numbers if hetcomm reduces them, else bytes of that size.
Dtype dtype_of(const at::Tensor& tensor);
// "float tensor of shape [2] and strides [1] on cpu".
std::string describe(const at::Tensor& tensor);

// Bytes from the first element to the end of the last one. The tensor is not empty.
int64_t extent(const at::Tensor& tensor);

// All checks throw by throw_invalid(). A tensor must be dense, of any strides, and its storage must
// hold all elements. TorchDevice checks its device.
void check_tensor(const at::Tensor& tensor, const char* operation);
// The two parts of it. A tensor of another device gets its own error between them.
void check_layout(const at::Tensor& tensor, const char* operation);
void check_storage(const at::Tensor& tensor, const char* operation);
// No two elements of an output may share memory.
void check_output(const at::Tensor& tensor, const char* operation);
// Nor may elements of several outputs.
void check_outputs(const std::vector<at::Tensor>& outputs, const char* operation);
// The only tensor of a list, as torch's single-device interface passes it. Not checked.
const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* operation);
// A list must hold `size` checked tensors, each of the dtype and element count of `like`.
void check_list(const std::vector<at::Tensor>& list, const at::Tensor& like, int64_t size,
                const char* operation);

void check_size(const at::Tensor& tensor, int64_t expected, const char* operation,
                const char* what);
void check_same_dtype(const at::Tensor& a, const at::Tensor& b, const char* operation);

// Whether memory holds the elements in row-major order, as operations need them.
bool is_row_major(const at::Tensor& tensor);
at::Tensor row_major_copy(const at::Tensor& tensor, at::Device device);
// Between tensors of one shape and dtype, of any strides.
void copy_elements(const at::Tensor& to, const at::Tensor& from);

// One contiguous tensor on `device` for a list of tensors of one dtype. It is the list's own memory
// (`direct`) if that lies there in one piece, else new and uninitialised.
struct Flat {
  at::Tensor tensor;
  bool direct = false;
};
Flat flatten(const std::vector<at::Tensor>& list, at::Device device);
// A copy of all tensors, one after the other.
at::Tensor joined(const std::vector<at::Tensor>& list);
void copy_in(const Flat& flat, const std::vector<at::Tensor>& list);
using Copy = std::function<void(const at::Tensor& to, const at::Tensor& from)>;
void copy_out(const Flat& flat, const std::vector<at::Tensor>& list, const Copy& copy);

}  // namespace hetcomm
