#pragma once

namespace hetcomm {

// Descriptors that a child of fork() closes as it begins. A child that kept a socket of its parent
// would hide the parent's death from the parent's peers. Thread-safe.
namespace close_on_fork {

void add(int descriptor);
void remove(int descriptor);  // before it is closed

}  // namespace close_on_fork

}  // namespace hetcomm
