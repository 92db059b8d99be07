#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "bootstrap/store.h"

namespace hetcomm {

// How the ranks of one group come through the stages of their set-up: all of them or none, and if
// none, with one cause. A rank that fails by itself is told apart from those that waited for it in
// vain. Made and used by one thread, during set-up only.
class Agreement {
 public:
  static constexpr const char* kExchange = "agreed";  // the first stage

  Agreement(Store& store, int rank, int size, std::string group, const Deadline& deadline);

  // Every rank does its part and publishes what that gave; returns what all gave, by rank. Throws
  // Error on every rank if one failed, the same sentence everywhere.
  std::vector<std::string> stage(const std::string& name, const std::function<std::string()>& part);

  // For parts that wait for others: the failure of a rank that has failed by itself, if that is
  // known before the deadline.
  Status failure(const Deadline& deadline) const;
  // Why `peer` failed in a stage in which it is known to have failed.
  Status reason(const std::string& stage, int peer) const;

  const Deadline& deadline() const { return deadline_; }
  const std::string& group() const { return group_; }

 private:
  Status named(const Status& failure) const;
  Status told(int peer, const std::string& sentence) const;

  Store& store_;
  const int rank_, size_;
  const std::string group_;
  const Deadline deadline_;
};

}  // namespace hetcomm
