#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "island/ccl/abi.h"
#include "island/island.h"

namespace hetcomm::nccl {

enum class Function : uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  reduce,
  broadcast,
  send,
  recv,
  copy  // on the device, no call of the library
};
const char* name(Function function);

// One call of the library with this member's arguments.
struct Call {
  Function function = Function::copy;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  size_t count = 0;  // of `type`
  DataType type = kBytes;
  RedOp op = sum;
  int peer = -1;  // root, or the member at the other end
};

// What contributions are multiplied by before they are summed.
struct Factor {
  DataType type;
  std::array<std::byte, 8> scalar;
};
std::optional<Factor> factor_of(const IslandCall& call);

// What this member calls for an island call, in order. Members derive fitting lists, because only
// what is equal on all of them (kinds, counts, places) decides. Pieces that follow each other
// become one; one equal piece per member, side by side, becomes the library's own reduce_scatter
// or all_gather. What is moved, is moved as bytes. The operation must be one of ccl_reduces().
std::vector<Call> lower(const IslandCall& call, int member, int members);

}  // namespace hetcomm::nccl
