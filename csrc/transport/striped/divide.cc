#include <numeric>

#include "transport/striped/striped.h"

namespace hetcomm {
namespace {

// Dividing a message must save this time, because each part costs both ends calls and polls.
// Messages of 32 KiB over two unlimited links took 46 us divided and 18 us whole, on two cores.
// With 1 and 2 Gbit/s that is a message of 38 KB, with two of 10 Gbit/s one of 125 KB.
constexpr int64_t kLeastSavedMicroseconds = 50;
// Parts begin at multiples of a page.
constexpr size_t kAlignment = 4096;

}  // namespace

std::vector<size_t> divide(size_t bytes, const std::vector<int64_t>& bandwidths) {
  __extension__ using Wide = __int128;
  const Wide sum = std::accumulate(bandwidths.begin(), bandwidths.end(), Wide{0});
  const Wide rest = sum - bandwidths[0];
  // Dividing saves bytes / first - bytes / sum seconds.
  const bool pays = rest > 0 && Wide(bytes) * rest * 1'000'000 >=
                                    Wide(kLeastSavedMicroseconds) * bandwidths[0] * sum;
  if (!pays || bytes < bandwidths.size() * kAlignment) return {bytes};
  std::vector<size_t> sizes;
  size_t begin = 0;
  Wide before = 0;
  for (int64_t bandwidth : bandwidths) {
    before += bandwidth;
    size_t end = static_cast<size_t>(Wide(bytes) * before / sum) / kAlignment * kAlignment;
    if (before == sum) end = bytes;
    sizes.push_back(end - begin);
    begin = end;
  }
  return sizes;
}

std::vector<size_t> divide(size_t bytes, const std::vector<int64_t>& bandwidths,
                           const Layout& over) {
  if (over.size() == bandwidths.size()) return divide(bytes, bandwidths);
  std::vector<int64_t> used;
  for (size_t stripe : over) used.push_back(bandwidths[stripe]);
  return divide(bytes, used);
}

}  // namespace hetcomm
