#pragma once

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

}  // namespace hetcomm
