#include "transport/link_offers.h"

#include <algorithm>

#include "base/fnv.h"
#include "base/packing.h"

namespace hetcomm {

LinkOffers::LinkOffers(const std::vector<std::string>& by_peer) {
  for (size_t peer = 0; peer < by_peer.size(); ++peer) {
    if (runs_.empty() || runs_.back().offer != by_peer[peer]) runs_.push_back({0, by_peer[peer]});
    runs_.back().end = static_cast<int>(peer) + 1;
  }
}

std::string LinkOffers::pack() const {
  Packer packer;
  for (const Run& run : runs_) packer.put(static_cast<uint64_t>(run.end)).put(run.offer);
  return packer.take();
}

LinkOffers LinkOffers::unpack(const std::string& bytes, int size) {
  Unpacker from(bytes);
  LinkOffers offers;
  while (offers.runs_.empty() || offers.runs_.back().end < size) {
    Run& run = offers.runs_.emplace_back();
    run.end = static_cast<int>(from.number());
    run.offer = from.text();
  }
  from.end();
  return offers;
}

const std::string& LinkOffers::operator[](int peer) const {
  return std::upper_bound(runs_.begin(), runs_.end(), peer,
                          [](int wanted, const Run& run) { return wanted < run.end; })
      ->offer;
}

bool differ(const std::vector<LinkOffers>& all, int rank, int peer) {
  const std::string &mine = all[rank][peer], &theirs = all[peer][rank];
  return !mine.empty() && !theirs.empty() && mine != theirs;
}

bool agree(const std::vector<LinkOffers>& all) {
  const int size = static_cast<int>(all.size());
  for (int rank = 0; rank < size; ++rank) {
    for (int peer = 0; peer < rank; ++peer) {
      if (differ(all, rank, peer)) return false;
    }
  }
  return true;
}

uint64_t spread_of(const std::string& group, int round) {
  return fnv1a(group + "/" + std::to_string(round)) % ((uint64_t(round) << 2) + 1);
}

}  // namespace hetcomm
