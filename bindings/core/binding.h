#pragma once

#include <pybind11/pybind11.h>

#include <utility>
#include <vector>

namespace hetcomm {

// Adds one concept to hetcomm._core: define a file-level `const Binding binding(order, function)`.
// Lower orders run first: base 0, device and topology 10, plan 20, island and transport 30,
// comm 40.
struct Binding {
  using Function = void (*)(pybind11::module_&);
  Binding(int order, Function function) { all().push_back({order, function}); }
  static std::vector<std::pair<int, Function>>& all() {
    static std::vector<std::pair<int, Function>> bindings;
    return bindings;
  }
};

}  // namespace hetcomm
