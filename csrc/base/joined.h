#pragma once

#include <string>
#include <type_traits>

namespace hetcomm {

// Strings or numbers as one text: "eth0, eth1".
template <typename Values>
std::string joined(const Values& values, const char* separator = ", ") {
  std::string text;
  for (const auto& value : values) {
    if (!text.empty()) text += separator;
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>) {
      text += std::to_string(value);
    } else {
      text += value;
    }
  }
  return text;
}

}  // namespace hetcomm
