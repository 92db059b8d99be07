#pragma once

#include <concepts>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace hetcomm {

// Whether the caller waits for the operation at once. False for a torch without that option.
template <typename Options>
bool caller_waits(const Options& options) {
  if constexpr (requires { options.asyncOp; }) {
    return !options.asyncOp;
  } else {
    return false;
  }
}

// The type that torch's Backend::getError() returns; a number for a torch without that call.
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

// The options of a group. torch copies them in Python, and passes the copy to split().
struct GroupOptions : c10d::Backend::Options {
  GroupOptions(std::chrono::milliseconds timeout, std::string bridge_codec)
      : c10d::Backend::Options("hetcomm", timeout), bridge_codec(std::move(bridge_codec)) {}

  std::string bridge_codec;  // of long messages between hosts; if empty, HETCOMM_BRIDGE_CODEC
};

}  // namespace hetcomm
