#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace hetcomm {

// Which algorithm serves which collective and size, as text:
//   all_reduce:0-4k=flat,4k-inf=hierarchical_ring;broadcast:0-inf=auto
// Sizes are bytes of the largest buffer of the collective, lower bound included, upper excluded,
// with the suffixes k, M, G and the word inf. "auto", and every size that no row covers, leaves
// the choice to the cost model. HETCOMM_SELECT sets the table; every rank must set the same.
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

  // "auto" if no row covers it.
  const std::string& algorithm(Collective collective, int64_t bytes) const;
  const std::vector<Row>& rows() const { return rows_; }
  std::string text() const;

 private:
  std::vector<Row> rows_;
};

}  // namespace hetcomm
