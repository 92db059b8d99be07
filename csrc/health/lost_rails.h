#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "health/rail_watch.h"
#include "health/tree_reduce.h"
#include "health/watched_group.h"

namespace hetcomm {

// Rails that fail during a job. The links of the failed rail lose a stripe at once, and later plans
// leave the rail out. All ranks agree on the first call of such plans: after every call that any
// rank has planned with the rail.
class LostRails {
 public:
  explicit LostRails(WatchedGroup& group) : group_(group), next_calls_(group) {}

  // The next two come before the group is watched.
  void watch(std::unique_ptr<RailWatch> rails) { watch_ = std::move(rails); }
  void use_stripes(std::vector<OwnStripe> stripes) { stripes_ = std::move(stripes); }
  void close() { watch_.reset(); }  // the connections of the rails

  void check();
  void on_news(int origin, const RailEnds& rail);
  void on_news(int origin, const FirstCallNews& news);

  // Whether this is the number of lost rails that the plan of a collective leaves out.
  bool leaves_out(size_t rails, uint64_t sequence) const;
  // The rails that the plan of a collective leaves out, see Health::lost_rails(). Releases `lock`,
  // which has the mutex, while it waits.
  std::vector<RailEnds> await(std::unique_lock<std::recursive_mutex>& lock, uint64_t sequence,
                              const Deadline& deadline);
  uint64_t decided_rails() const { return first_calls_.size(); }  // their number

 private:
  // A stripe of this rank whose peer has not left joins the peer by this rail alone.
  bool is_last(const OwnStripe& stripe, const RailEnds& rail) const;
  bool others_join(int peer, const RailEnds& rail) const;
  void lose(const RailEnds& rail, const std::string& why);
  std::string rate_left(int peer, const RailEnds& rail) const;
  bool take_out(const RailEnds& rail);  // false if it was known
  void close_lost_stripes();
  void agree_on(const RailEnds& rail);
  void take_first_calls();
  size_t left_out_by(uint64_t sequence) const;
  bool decided_for(uint64_t sequence) const;
  Status no_agreement() const;

  WatchedGroup& group_;
  std::unique_ptr<RailWatch> watch_;
  std::vector<OwnStripe> stripes_;
  std::vector<OwnStripe> unclosed_;  // of lost rails, until their links have lost them
  std::vector<RailEnds> known_;      // lost rails, in the order in which this rank learnt of them
  std::vector<RailEnds> agreed_;     // lost rails in the order of rank 0
  TreeReduce<FirstCallNews> next_calls_;
  // By agreed rail: the first collective whose plan leaves it out. Shorter than agreed_ until all
  // ranks have told their next call.
  std::vector<uint64_t> first_calls_;
};

}  // namespace hetcomm
