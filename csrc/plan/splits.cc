#include "plan/splits.h"

#include <algorithm>
#include <numeric>

#include "base/status.h"

namespace hetcomm {

std::vector<int64_t> split_elements(int64_t rows, int64_t elements, std::vector<int64_t> splits,
                                    int size, const std::string& operation,
                                    const std::string& what) {
  if (rows == 0 && elements > 0) {
    throw Error(Code::invalid_argument, operation + ": expected rows to split, got none in the " +
                                            what + " without axes; reshape it to (1,)");
  }
  if (splits.empty() && rows % size == 0) splits.assign(size, rows / size);
  const bool within =
      std::all_of(splits.begin(), splits.end(), [&](int64_t n) { return n >= 0 && n <= rows; });
  const int64_t sum = within ? std::accumulate(splits.begin(), splits.end(), int64_t{0}) : -1;
  if (static_cast<int>(splits.size()) != size || sum != rows) {
    std::string got = std::to_string(splits.size());
    got += within ? " that add up to " + std::to_string(sum) : ", of which one is out of bounds";
    throw Error(Code::invalid_argument, operation + ": expected " + std::to_string(size) +
                                            " split sizes that add up to the " +
                                            std::to_string(rows) + " rows of the " + what +
                                            ", got " + got + "; give one for each rank");
  }
  for (int64_t& split : splits) split *= rows ? elements / rows : 1;
  return splits;
}

void set_splits(Spec& spec, int rank, const std::vector<int64_t>& sends,
                const std::vector<int64_t>& receives, const std::string& operation) {
  if (sends[rank] != receives[rank]) {
    throw Error(Code::invalid_argument,
                operation + ": expected equal split sizes from this rank to itself, got " +
                    std::to_string(sends[rank]) + " sent and " + std::to_string(receives[rank]) +
                    " received elements; correct one of them");
  }
  spec.splits_rank = rank;
  spec.splits = sends;
  spec.splits.insert(spec.splits.end(), receives.begin(), receives.end());
}

}  // namespace hetcomm
