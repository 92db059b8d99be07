#pragma once

#include <vector>

namespace hetcomm {

// A variable of the environment that a user may set; in Markdown, for README's table.
struct Setting {
  const char* variables;  // "HETCOMM_SELECT", or several of one meaning, separated by ", "
  const char* meaning;
  const char* otherwise;  // the default
};

// All settings, without the variables of a vendor's libraries, which are in its row.
// tests/core/test_settings.py makes README's table from this table.
const std::vector<Setting>& settings();

}  // namespace hetcomm
