#pragma once

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace hetcomm {

// Stands for the reason of the last failed system call among the parts of system_text().
struct Reason {};
inline constexpr Reason kReason{};

// The parts as one text: system_text("cannot open \"", path, "\": ", kReason). Takes errno before
// any text is made, because that may change errno. So each part is a text that exists already.
template <typename... Parts>
std::string system_text(const Parts&... parts) {
  const int error = errno;
  std::string text;
  const auto add = [&](const auto& part) {
    if constexpr (std::is_same_v<std::decay_t<decltype(part)>, Reason>) {
      text += std::strerror(error);
    } else {
      text += std::string_view(part);
    }
  };
  (add(parts), ...);
  errno = error;
  return text;
}

}  // namespace hetcomm
