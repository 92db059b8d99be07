#pragma once

#include "plan/plan.h"

namespace hetcomm {

// The elements that go to, or come from, each rank: `elements` lie in `rows`, of which each rank
// has as many as `splits` says, or all equally many if it is empty. Throws Error(invalid_argument)
// with the operation and `what` they are the rows of; so, too, for an element without a row.
std::vector<int64_t> split_elements(int64_t rows, int64_t elements, std::vector<int64_t> splits,
                                    int size, const std::string& operation,
                                    const std::string& what);

// Each rank knows its own row and column of the matrix, which is all that its plan needs. Throws
// likewise where it would not send to itself what it receives.
void set_splits(Spec& spec, int rank, const std::vector<int64_t>& sends,
                const std::vector<int64_t>& receives, const std::string& operation);

}  // namespace hetcomm
