#pragma once

#include "plan/plan.h"

namespace hetcomm {

// The number of elements to or from each rank. A buffer has `elements` in `rows`. Each rank has as
// many rows as `splits` says; without splits all ranks have equally many. Throws
// Error(invalid_argument) for other splits and for elements without rows. `what` names the buffer.
std::vector<int64_t> split_elements(int64_t rows, int64_t elements, std::vector<int64_t> splits,
                                    int size, const std::string& operation,
                                    const std::string& what);

// Sets the splits of `rank` alone. Throws Error(invalid_argument) if the rank would not send to
// itself what it receives from itself.
void set_splits(Spec& spec, int rank, const std::vector<int64_t>& sends,
                const std::vector<int64_t>& receives, const std::string& operation);

}  // namespace hetcomm
