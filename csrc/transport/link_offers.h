#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hetcomm {

// The places of one rank's links, see Link::places(), by peer; empty where there is none. Kept in
// runs, as most peers have the same history.
class Places {
 public:
  explicit Places(const std::vector<std::vector<uint64_t>>& by_peer);
  static Places unpack(const std::string& bytes, int size);  // throws Error(invalid_argument)

  std::string pack() const;
  const std::vector<uint64_t>& operator[](int peer) const;

 private:
  struct Run {
    int end;  // after its last peer
    std::vector<uint64_t> places;
  };
  Places() = default;

  std::vector<Run> runs_;
};

// Whether the two ends of every link are in the same place. `all`: by rank.
bool agree(const std::vector<Places>& all);
// Where both ends of the link between two ranks try next, if they differ: the later of both places.
// From the second round on, groups that are set up at once and took each other's places try
// different ones, by their names.
std::optional<std::vector<uint64_t>> next_places(const std::vector<Places>& all, int rank, int peer,
                                                 const std::string& group, int round);

}  // namespace hetcomm
