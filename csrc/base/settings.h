#pragma once

#include <vector>

namespace hetcomm {

// A variable of the environment that a user may set, as README's table shows it in Markdown.
struct Setting {
  const char* variables;  // "HETCOMM_SELECT"; several, separated by ", ", where they mean the same
  const char* meaning;
  const char* otherwise;  // what holds where the variable is unset
};

// Every setting but those that name the libraries of a vendor, which are in its row. README's table
// is made from this one: tests/core/test_settings.py.
const std::vector<Setting>& settings();

}  // namespace hetcomm
