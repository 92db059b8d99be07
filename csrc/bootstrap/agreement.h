#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/descriptor.h"
#include "base/status.h"
#include "bootstrap/store.h"

namespace hetcomm {

// Takes the ranks of one group through the stages of set-up. A stage succeeds on all ranks, or
// fails on all ranks with one cause. A rank that failed by itself is the cause, before a rank whose
// failure may be a consequence. `watch`: what control connections know. Used by one thread.
class Agreement {
 public:
  static constexpr const char* kExchange = "agreed";  // the first stage

  using Watch = std::function<Status()>;
  Agreement(
      Store& store, int rank, int size, std::string group, const Deadline& deadline,
      Watch watch = [] { return Status(); });

  // Runs `part` and publishes its result; returns the results of all ranks. If one rank fails,
  // throws Error with the same message on every rank.
  std::vector<std::string> stage(const std::string& name, const std::function<std::string()>& part);

  // The value of a key that another rank sets. If the key does not come and a rank has failed,
  // throws Error with that failure; throws Error(timeout) once the deadline has passed.
  std::string get(const std::string& key) const { return get(key, deadline_); }
  // The first failure of a rank by itself; ok if none is known by the deadline. For parts that wait
  // for other ranks.
  Status failure(const Deadline& deadline) const;
  // For a failure outside of the stages: publishes the failure unless it may be a consequence.
  // Returns it with this rank's name, unless another rank is the cause.
  Status publish(const std::exception& failure);
  // Throws what the control connections know. For waits inside the store.
  void look() const;
  // Has the store publish the end of this process, if the store sees that.
  void leave_will();
  void withdraw_will();
  // The failure of `peer`, which has failed in this stage.
  Status failure_in(const std::string& stage, int peer) const;

  const Deadline& deadline() const { return deadline_; }
  const std::string& group() const { return group_; }

 private:
  std::string get(const std::string& key, const Deadline& deadline) const;
  Status published(const Deadline& deadline) const;
  Status attributed(const Status& failure) const;
  // A failure that names no rank belongs to its publisher.
  Status unpacked(const std::string& failure, int publisher) const;

  Store& store_;
  const int rank_, size_;
  const std::string group_;
  const Deadline deadline_, results_due_;
  const Watch watch_;
  mutable bool heeds_watch_ = true;
  bool published_ = false;
  std::optional<Deadline> report_;  // of this rank's failure
  Descriptor spare_;  // closed before a failure is published, because the store may need one
};

}  // namespace hetcomm
