#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "emulated/arithmetic.h"
#include "emulated/ccl_abi.h"
#include "emulated/mesh.h"

namespace hetcomm::emulated {

enum class CallKind : uint16_t {
  all_reduce,
  reduce_scatter,
  reduce,
  all_gather,
  broadcast,
  message,
  split,
  connection,
  end,
};

std::string call_name(uint16_t kind);

// How members combine their contributions. `op` is op_sum, op_product, op_max or op_min.
struct Reduction {
  int op = op_sum;
  bool scaled = false;              // each member first multiplies its own contribution
  Scalar factor;                    // by this factor,
  const void* factor_at = nullptr;  // or by the factor at this address when the call runs
  bool averaged = false;            // integers are divided by the number of members at the end
};

// One call of the collective library.
struct Call {
  CallKind kind;
  const void* source = nullptr;
  void* target = nullptr;
  size_t count = 0;
  int type = 0;
  int peer = -1;         // or root
  bool sending = false;  // of a message
  Reduction reduction;
  uint32_t sequence = 0;  // of the collectives of this communicator
};

// Runs the calls of one group: collectives one after another, then all messages at once. Takes a
// few MiB of memory beside the buffers. Throws like Mesh::exchange().
void run_calls(const std::vector<Call>& calls, Mesh& mesh, const Stop& stop);

}  // namespace hetcomm::emulated
