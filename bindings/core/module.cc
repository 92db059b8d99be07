#include <algorithm>

#include "core/binding.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The hetcomm core: topology, plans, engines and communicators, without torch.";
  auto& bindings = hetcomm::Binding::all();
  std::stable_sort(bindings.begin(), bindings.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [order, bind] : bindings) bind(module);
}
