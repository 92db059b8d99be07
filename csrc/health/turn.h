#pragma once

#include <bit>

namespace hetcomm {

// When one rank is enough for a task, lower ranks come first: a rank waits one turn for each binary
// digit of its number. Then it does the task, unless another rank has done so.
template <class Duration>
Duration wait_of_turns(int rank, Duration turn) {
  return std::bit_width(static_cast<unsigned>(rank)) * turn;
}

}  // namespace hetcomm
