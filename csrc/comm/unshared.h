#pragma once

namespace hetcomm {

// Descriptors that children of fork() must not keep: while a child holds a socket of a dead parent,
// the parent's peers see a living one. A child closes them as it begins. Thread-safe.
namespace unshared {

void add(int descriptor);
void remove(int descriptor);  // before it is closed

}  // namespace unshared

}  // namespace hetcomm
