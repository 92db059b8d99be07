#include "transport/link_offers.h"

#include <algorithm>

#include "base/fnv.h"
#include "base/packing.h"

namespace hetcomm {
namespace {

bool differ(const std::vector<Places>& all, int rank, int peer) {
  const std::vector<uint64_t>&mine = all[rank][peer], &theirs = all[peer][rank];
  return mine.size() == theirs.size() && mine != theirs;
}

}  // namespace

Places::Places(const std::vector<std::vector<uint64_t>>& by_peer) {
  for (size_t peer = 0; peer < by_peer.size(); ++peer) {
    if (runs_.empty() || runs_.back().places != by_peer[peer]) runs_.push_back({0, by_peer[peer]});
    runs_.back().end = static_cast<int>(peer) + 1;
  }
}

std::string Places::pack() const {
  Packer packer;
  for (const Run& run : runs_) {
    packer.put(static_cast<uint64_t>(run.end)).put(uint64_t{run.places.size()});
    for (uint64_t place : run.places) packer.put(place);
  }
  return packer.take();
}

Places Places::unpack(const std::string& bytes, int size) {
  Unpacker from(bytes);
  Places places;
  while (places.runs_.empty() || places.runs_.back().end < size) {
    Run& run = places.runs_.emplace_back();
    run.end = static_cast<int>(from.number());
    for (uint64_t rails = from.number(); rails > 0; --rails) run.places.push_back(from.number());
  }
  from.end();
  return places;
}

const std::vector<uint64_t>& Places::operator[](int peer) const {
  return std::upper_bound(runs_.begin(), runs_.end(), peer,
                          [](int wanted, const Run& run) { return wanted < run.end; })
      ->places;
}

bool agree(const std::vector<Places>& all) {
  const int size = static_cast<int>(all.size());
  for (int rank = 0; rank < size; ++rank) {
    for (int peer = 0; peer < rank; ++peer) {
      if (differ(all, rank, peer)) return false;
    }
  }
  return true;
}

std::optional<std::vector<uint64_t>> next_places(const std::vector<Places>& all, int rank, int peer,
                                                 const std::string& group, int round) {
  if (!differ(all, rank, peer)) return std::nullopt;
  const uint64_t spread = fnv1a(group + "/" + std::to_string(round)) % ((round << 2) + 1);
  std::vector<uint64_t> next;
  for (size_t rail = 0; rail < all[rank][peer].size(); ++rail) {
    next.push_back(std::max(all[rank][peer][rail], all[peer][rank][rail]) + spread);
  }
  return next;
}

}  // namespace hetcomm
