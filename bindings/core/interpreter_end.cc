#include "core/interpreter_end.h"

#include <Python.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <thread>

namespace hetcomm {
namespace {

std::thread::id ending_thread;
std::terminate_handler earlier = nullptr;

// A real error has an exception, or comes from the thread that ends the process.
[[noreturn]] void park_or_terminate() {
  const bool late = Py_IsInitialized() == 0 && std::this_thread::get_id() != ending_thread;
  while (late && !std::current_exception()) pause();
  if (earlier != nullptr) earlier();
  std::abort();
}

}  // namespace

void park_late_threads() {
  if (earlier != nullptr) return;
  ending_thread = std::this_thread::get_id();
  earlier = std::set_terminate(&park_or_terminate);
}

}  // namespace hetcomm
