#include "health/ring.h"

#include <cstddef>

namespace hetcomm {

Ring::Ring(const std::vector<std::vector<int>>& hosts) {
  for (const auto& ranks : hosts) ranks_.insert(ranks_.end(), ranks.begin(), ranks.end());
  places_.resize(ranks_.size());
  for (size_t place = 0; place < ranks_.size(); ++place) {
    places_[ranks_[place]] = static_cast<int>(place);
  }
}

std::set<int> Ring::neighbours(int rank) const {
  std::set<int> found;
  const size_t size = ranks_.size(), place = places_[rank];
  for (size_t apart = 1; apart < size; apart *= 2) {
    found.insert({ranks_[(place + apart) % size], ranks_[(place + size - apart) % size]});
  }
  return found;
}

int Ring::parent(int rank) const {
  const int place = places_[rank];
  return ranks_[place & (place - 1)];
}

std::vector<int> Ring::children(int rank) const {
  std::vector<int> children;
  const size_t place = places_[rank];
  for (size_t bit = 1; place + bit < ranks_.size() && (place & bit) == 0; bit *= 2) {
    children.push_back(ranks_[place + bit]);
  }
  return children;
}

}  // namespace hetcomm
