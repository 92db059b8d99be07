#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "health/watched_group.h"

namespace hetcomm {

// Asks all ranks for their state, and answers other ranks. The question floods. Each rank answers
// to the neighbour from which it heard the question first, so answers take a way that just worked.
class Inquiries {
 public:
  using Done = std::function<void(const GroupState&)>;
  static constexpr std::chrono::seconds kAnswerBound{1};

  explicit Inquiries(WatchedGroup& group);

  // See Health::inquire(). Without the mutex.
  void ask(const std::string& why, const Inquiry& inquiry, Done done);
  void on_news(int from, const Inquiry& inquiry);
  void on_news(const AnswerNews& news);
  // Ends the inquiries that are complete or late, or all. Without the mutex.
  void finish(bool all);

  // Asks all ranks for nothing but an answer. `done` is called as Health::inquire() says.
  void call_roll(Done done);
  // Asks once after a failure of the group, unless another rank has asked.
  void ask_after_failure();
  // Waits until an inquiry about the failure is answered; bounded. Without the mutex.
  void await_answers_about_failure(const std::function<void()>& poll);

  // The next two are in timeout_inquiry.cc. Asks once before a collective times out, unless another
  // rank has asked, and tells all ranks the likely culprits.
  void ask_before_timeout(const Run& run);
  void on_news(const CulpritNews& news);

 private:
  struct Asked;

  // Gives the inquiry its asker and its number.
  std::shared_ptr<Asked> make(const std::string& why, Inquiry inquiry, Done done);
  void flood(std::shared_ptr<Asked> asked);
  RankState own_state(const Inquiry& inquiry) const;
  void give_up_absent(Asked& asked) const;  // ranks that left or died
  // This rank asks after that time, unless another rank has asked.
  std::chrono::milliseconds wait_to_ask() const;
  // timeout_inquiry.cc
  void tell_culprits(uint64_t sequence, const GroupState& state);
  void note_inquiry_before_timeout(uint64_t sequence);

  WatchedGroup& group_;
  const std::string clock_;
  uint64_t count_ = 0;                             // inquiries of this rank so far
  std::vector<std::shared_ptr<Asked>> asked_;      // that other ranks have yet to answer
  std::deque<std::pair<Inquiry, int>> inquirers_;  // the latest of other ranks, and their senders
  std::optional<Clock::time_point> failed_at_;     // when this rank learnt of the failure
  bool asked_about_failure_ = false;               // this rank or another one
  // Of the newest inquiry before a timeout, of any rank: the call's sequence + 1, and when.
  uint64_t asked_about_ = 0;
  Clock::time_point asked_at_{};
};

}  // namespace hetcomm
