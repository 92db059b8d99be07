#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace hetcomm {

// The algorithm for each collective and size, as text:
//   all_reduce:0-4k=flat,4k-inf=hierarchical_ring;broadcast:0-inf=auto
// Sizes are bytes of the collective's largest buffer, with the suffixes k, M, G or the word inf. A
// range includes its lower bound and excludes its upper bound. The cost model chooses for "auto"
// and for sizes without a row. HETCOMM_SELECT sets the table; every rank must set the same.
class SelectionTable {
 public:
  struct Row {
    Collective collective;
    int64_t from;
    int64_t to;
    std::string algorithm;
  };

  SelectionTable() = default;
  explicit SelectionTable(const std::string& text);  // throws Error(invalid_argument)

  // "auto" for a size without a row.
  const std::string& algorithm(Collective collective, int64_t bytes) const;
  const std::vector<Row>& rows() const { return rows_; }
  std::string text() const;

 private:
  std::vector<Row> rows_;
};

}  // namespace hetcomm
