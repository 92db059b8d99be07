#pragma once

#include "plan/plan.h"

namespace hetcomm {

// Whether two ranges of memory have bytes in common.
bool overlap(const void* a, int64_t bytes_of_a, const void* b, int64_t bytes_of_b);

// Whether input and output may be the same memory, as Spec::in_place says.
bool allows_in_place(Collective collective);

// Throws Error(invalid_argument) if the buffers of a call share memory. A call in place may. The
// smaller buffer of gathers and scatters may be this rank's block of the larger one.
void check_apart(const Spec& spec, int rank, int size, const void* input, const void* output);

}  // namespace hetcomm
