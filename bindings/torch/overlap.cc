// Whether the outputs of one call share memory.

#include <algorithm>
#include <map>

#include "torch/tensors.h"

namespace hetcomm {
namespace {

// stride * low, ..., stride * high.
struct Term {
  int64_t stride, low = 0, high = 0;
};
using Terms = std::vector<Term>;  // by falling strides; the last stride is 1

// Whether one number of each term from `first` on add up to `sum`. True once `steps` are used up.
bool reaches(const Terms& terms, size_t first, int64_t sum, int& steps) {
  const Term& term = terms[first];
  if (first + 1 == terms.size()) return term.low <= sum && sum <= term.high;
  int64_t least = 0, most = 0;
  for (size_t i = first + 1; i < terms.size(); ++i) {
    least += terms[i].stride * terms[i].low;
    most += terms[i].stride * terms[i].high;
  }
  // Division rounds towards zero.
  const int64_t begin = std::max(term.low, (sum - most) / term.stride - 1);
  const int64_t end = std::min(term.high, (sum - least) / term.stride + 1);
  for (int64_t factor = begin; factor <= end; ++factor) {
    if (--steps < 0) return true;
    const int64_t rest = sum - factor * term.stride;
    if (least <= rest && rest <= most && reaches(terms, first + 1, rest, steps)) return true;
  }
  return false;
}

intptr_t begin_of(const at::Tensor& tensor) {
  return reinterpret_cast<intptr_t>(tensor.const_data_ptr());
}

constexpr int kMostSteps = 1 << 20;  // some milliseconds

// For tensors whose extents overlap, such as columns of a matrix.
bool share_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_contiguous() && b.is_contiguous()) return true;
  std::map<int64_t, Term, std::greater<>> by_stride;  // in bytes
  const auto add = [&](int64_t stride, int64_t low, int64_t high) {
    Term& term = by_stride.try_emplace(stride, Term{stride}).first->second;
    term.low += low;
    term.high += high;
  };
  add(1, 1 - b.element_size(), a.element_size() - 1);
  for (int64_t i = 0; i < a.dim(); ++i) {
    if (a.size(i) > 1) add(a.stride(i) * a.element_size(), 0, a.size(i) - 1);
  }
  for (int64_t i = 0; i < b.dim(); ++i) {
    if (b.size(i) > 1) add(b.stride(i) * b.element_size(), 1 - b.size(i), 0);
  }
  Terms terms;
  for (const auto& [stride, term] : by_stride) terms.push_back(term);
  int steps = kMostSteps;
  return reaches(terms, 0, begin_of(b) - begin_of(a), steps);
}

}  // namespace

void check_outputs(const std::vector<at::Tensor>& outputs, const char* operation) {
  for (const at::Tensor& tensor : outputs) check_output(tensor, operation);
  if (outputs.size() < 2) return;
  std::vector<const at::Tensor*> sorted;
  for (const at::Tensor& tensor : outputs) {
    if (tensor.layout() == at::kStrided && tensor.numel() > 0) sorted.push_back(&tensor);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const at::Tensor* a, const at::Tensor* b) { return begin_of(*a) < begin_of(*b); });
  std::vector<const at::Tensor*> open;  // extents that end behind the current one's begin
  for (const at::Tensor* tensor : sorted) {
    std::erase_if(open, [&](const at::Tensor* before) {
      return begin_of(*before) + extent(*before) <= begin_of(*tensor);
    });
    for (const at::Tensor* before : open) {
      if (!share_bytes(*before, *tensor)) continue;
      throw_invalid(operation, "outputs that share no memory",
                    "a " + describe(*before) + " and a " + describe(*tensor) + ", " +
                        std::to_string(begin_of(*tensor) - begin_of(*before)) + " bytes behind it",
                    "give each result memory of its own");
    }
    open.push_back(tensor);
  }
}

}  // namespace hetcomm
