#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "emulated/arithmetic.h"
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
};

std::string call_name(uint16_t kind);

// How contributions are combined. `op` is sum, product, max or min.
struct Reduction {
  int op = 0;
  bool scaled = false;              // each member multiplies its own contribution first
  Scalar factor;                    // by this,
  const void* factor_at = nullptr;  // or by what is here when the call runs
  bool averaged = false;            // integers are divided by the members at the end
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

// Runs the calls of one group: collectives one after another, then all messages at once. Memory
// beside the buffers is a few MiB. Throws what Mesh::exchange() throws.
void run_calls(const std::vector<Call>& calls, Mesh& mesh, const Stop& stop);

}  // namespace hetcomm::emulated
