#pragma once

#include <concepts>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace hetcomm {

// Newer torch says whether the caller goes on at once or waits.
template <typename Options>
bool waits(const Options& options) {
  if constexpr (requires { options.asyncOp; }) {
    return !options.asyncOp;
  } else {
    return false;
  }
}

// What torch's Backend::getError() returns; a number where it has no such call.
template <typename Backend>
struct ErrorOf {
  using Type = int;
};
template <typename Backend>
  requires requires(Backend& backend) { backend.getError(); }
struct ErrorOf<Backend> {
  using Type = decltype(std::declval<Backend&>().getError());
};
using ErrorType = ErrorOf<c10d::Backend>::Type;

// What a group was made with; torch hands a copy to split(). A type of its own, because torch
// copies it in Python.
struct GroupOptions : c10d::Backend::Options {
  explicit GroupOptions(std::chrono::milliseconds timeout)
      : c10d::Backend::Options("hetcomm", timeout) {}
};

}  // namespace hetcomm
