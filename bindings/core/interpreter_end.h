#pragma once

namespace hetcomm {

// Called before the interpreter ends. From then on a thread that asks for the lock of an ended
// interpreter stays where it is until the process ends, as with CPython 3.14. Older versions unwind
// the thread. Guards of the lock have noexcept destructors, so unwinding calls std::terminate(),
// and would abort the process.
void park_late_threads();

}  // namespace hetcomm
