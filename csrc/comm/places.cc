#include "comm/places.h"

#include <algorithm>
#include <functional>

#include "base/fnv.h"
#include "base/packing.h"

namespace hetcomm {
namespace {

bool differ(const std::vector<Places>& all, int rank, int peer) {
  const std::vector<uint64_t>&mine = all[rank][peer], &theirs = all[peer][rank];
  return mine.size() == theirs.size() && mine != theirs;
}

}  // namespace

std::string pack(const Places& places) {
  Packer packer;
  for (size_t begin = 0, end = 0; begin < places.size(); begin = end) {
    while (end < places.size() && places[end] == places[begin]) ++end;
    packer.put(uint64_t{end - begin}).put(uint64_t{places[begin].size()});
    for (uint64_t place : places[begin]) packer.put(place);
  }
  return packer.take();
}

Places unpack_places(const std::string& bytes, int size) {
  Unpacker from(bytes);
  Places places;
  while (places.size() < static_cast<size_t>(size)) {
    const uint64_t peers = from.number(), rails = from.number();
    std::vector<uint64_t> one;
    for (uint64_t rail = 0; rail < rails; ++rail) one.push_back(from.number());
    places.resize(std::min<uint64_t>(places.size() + peers, size), one);
  }
  from.end();
  return places;
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
