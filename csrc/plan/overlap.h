#pragma once

#include "plan/plan.h"

namespace hetcomm {

// Whether input and output may be the same memory, as Spec::in_place says.
bool allows_in_place(Collective collective);

// Throws Error(invalid_argument) if the buffers of a call share memory. A call in place may. The
// smaller buffer of gathers and scatters may be this rank's block of the larger one.
void check_apart(const Spec& spec, int rank, int size, const void* input, const void* output);

}  // namespace hetcomm
