#pragma once

#include <linux/filter.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace hetcomm {

// A set of IP addresses. A filter for the kernel admits TCP segments of these sources, and drops
// all others. A plain value.
class SourceFilter {
 public:
  // "198.18.0.1", "198.18.0.0/15", "2001:db8::/32" or "any". Throws Error(invalid_argument).
  void add(const std::string& source);
  bool operator==(const SourceFilter&) const = default;

  struct Program {
    std::vector<sock_filter> code;
    bool exact = true;  // false: the program admits neighbours of the addresses, too
  };
  // A classic BPF program of at most so many instructions, 64 or more. If all addresses do not fit,
  // ranges of them grow together.
  Program program(size_t most) const;

 private:
  struct Prefix {
    std::array<uint32_t, 4> words{};
    int bits = 128;

    auto operator<=>(const Prefix&) const = default;
    Prefix shortened(int most) const;
  };
  using Ranges = std::map<uint32_t, uint32_t>;  // last address, by the first

  static Ranges merged(const Ranges& ranges, size_t most);

  Ranges v4_;
  std::set<Prefix> v6_;
};

}  // namespace hetcomm
