#pragma once

#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

namespace hetcomm {

// Numbers and letters as text. printf(), strtod(), tolower() and streams follow the locale of the
// process, which a program may change at any time. These functions do not.

// "12.50" of 12.5 and 2 digits behind the point, as printf's "%.2f" in the C locale.
inline std::string format_fixed(double value, int digits) {
  char text[400];  // the largest double has 309 digits
  return {text, std::to_chars(text, std::end(text), value, std::chars_format::fixed, digits).ptr};
}

// "12.5" or "1.25e+07" with so many significant digits at most, as printf's "%.6g".
inline std::string format_general(double value, int digits = 6) {
  char text[64];
  return {text, std::to_chars(text, std::end(text), value, std::chars_format::general, digits).ptr};
}

// The number at the beginning of "16.0 GT/s" or "0x1003"; none without a finite one.
inline std::optional<double> leading_number(std::string_view text) {
  const bool hexadecimal = text.starts_with("0x");
  if (hexadecimal) text.remove_prefix(2);
  double value = 0;
  const auto read =
      std::from_chars(text.data(), text.data() + text.size(), value,
                      hexadecimal ? std::chars_format::hex : std::chars_format::general);
  return read.ec == std::errc() && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
constexpr bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
constexpr bool is_printable(char c) { return c >= ' ' && c <= '~'; }
constexpr char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; }
constexpr char to_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c & ~0x20) : c; }
constexpr bool is_letter_or_digit(char c) { return is_digit(c) || to_lower(c) != to_upper(c); }

}  // namespace hetcomm
