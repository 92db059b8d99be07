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

// One call of a function of the library, with this member's arguments.
struct Call {
  Function function = Function::copy;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  size_t count = 0;  // of `type`
  DataType type = kBytes;
  RedOp op = sum;
  int peer = -1;  // root, or the member at the other end
};

// The factor of a premul_sum, as the library takes it.
struct Factor {
  DataType type;
  std::array<std::byte, 8> scalar;
};
std::optional<Factor> factor_of(const IslandCall& call);

// This member's calls for an island call, in order. The lists of all members match, because only
// kinds, counts and positions decide, which are equal on all members. Consecutive pieces become
// one, but not in an all_to_all. Equal adjacent pieces, one for each member, become the library's
// reduce_scatter or all_gather; the last one may be longer. Data that only moves, moves as bytes.
// The operation must be one of ccl_reduces().
std::vector<Call> lower(const IslandCall& call, int member, int members);

}  // namespace hetcomm::nccl
