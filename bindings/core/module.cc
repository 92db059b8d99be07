#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "core/binding.h"

namespace {

// A program may start without standard streams, as daemons do. A socket would get their numbers,
// and the log would then go into the socket.
void reserve_standard_streams() {
  for (int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) < 0) open("/dev/null", O_RDWR);  // gets the lowest free number
  }
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  reserve_standard_streams();
  module.doc() = "The hetcomm core: topology, plans, engines and communicators, without torch.";
  auto& bindings = hetcomm::Binding::all();
  std::stable_sort(bindings.begin(), bindings.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [order, bind] : bindings) bind(module);
}
