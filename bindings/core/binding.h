#pragma once

#include <pybind11/pybind11.h>

#include <utility>
#include <vector>

namespace hetcomm {

// Binds an enumeration, up to its last value, by name().
template <typename Value>
void enumerate(pybind11::module_& module, const char* type, const char* doc, Value last) {
  pybind11::enum_<Value> values(module, type, doc);
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    values.value(name(static_cast<Value>(i)), static_cast<Value>(i));
  }
}

// Adds one concept to hetcomm._core by a file-level `const Binding codec_binding(10, bind_codec)`.
// The names are distinct, because the build joins several of these files.
// Lower orders run first: base 0, device and topology 10, plan 20, island and transport 30,
// comm 40, dumps 41.
struct Binding {
  using Function = void (*)(pybind11::module_&);
  Binding(int order, Function function) { all().push_back({order, function}); }
  static std::vector<std::pair<int, Function>>& all() {
    static std::vector<std::pair<int, Function>> bindings;
    return bindings;
  }
};

}  // namespace hetcomm
