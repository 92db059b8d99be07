#include "health/inquiries.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>

#include "base/config.h"
#include "base/log.h"
#include "health/dump.h"
#include "health/path_rates.h"
#include "health/turn.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

// After a failure, and before a timeout, one inquiry is enough.
constexpr auto kTurn = 20ms;
// A rank that leaves a failed group waits so long for an inquiry of another rank.
constexpr auto kFirstInquiryBound = 150ms;
constexpr size_t kRememberedInquiries = 64;
// Ranks of groups up to this size send their whole sample of calls. Larger groups send fewer calls
// of each level, because neighbours forward all answers.
constexpr int kFullSampleRanks = 32;
constexpr size_t kFewestOfLevel = 8;

int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

// Of ranks with one clock, the most exact answer counts for all. Copies of a virtual machine may
// have clocks of one name, which differ.
void share_clocks(GroupState& state) {
  std::map<std::string, std::pair<int64_t, int64_t>> exact;  // error and offset, by clock
  for (const auto& answer : state.answers) {
    if (!answer) continue;
    const auto own = std::pair(answer->error, answer->offset);
    const auto found = exact.try_emplace(answer->state.clock, own).first;
    found->second = std::min(found->second, own);
  }
  for (auto& answer : state.answers) {
    if (!answer) continue;
    const auto [error, offset] = exact.at(answer->state.clock);
    if (std::abs(answer->offset - offset) > answer->error + error) continue;
    answer->offset = offset;
    answer->error = error;
  }
}

}  // namespace

// An inquiry of this rank.
struct Inquiries::Asked {
  Inquiry inquiry;
  Clock::time_point at = Clock::now();
  Deadline deadline{kAnswerBound};
  GroupState state;
  std::set<int> awaited;
  std::map<int, std::vector<std::string>> parts;  // of incomplete answers, by rank
  Done done;

  // The rank does not answer any more.
  void give_up(int rank, const std::string& why) {
    if (awaited.erase(rank) > 0) state.silent[rank] = why;
  }
};

Inquiries::Inquiries(WatchedGroup& group) : group_(group), clock_(clock_name()) {}

RankState Inquiries::own_state(const Inquiry& inquiry) const {
  RankState state{
      .process = static_cast<uint64_t>(getpid()), .clock = clock_, .calls = group_.next_call};
  if (inquiry.detail == Inquiry::Detail::presence) return state;
  const auto held = group_.hold();
  state.now = now_ns();
  if (!held) {
    state.note = "its operations are unknown, because a thread has been inside a library for " +
                 format_seconds(kLockBound);
    return state;
  }
  const RunQueue& queue = *group_.queue;
  if (inquiry.detail == Inquiry::Detail::pace) {
    const size_t each =
        CallSample::kEach * kFullSampleRanks / std::max(group_.size, kFullSampleRanks);
    state.call_times = queue.recorder.call_times(inquiry.sequence, std::max(each, kFewestOfLevel));
    state.messages = long_messages(queue.recorder.read(), inquiry.sequence);
    return state;
  }
  state.operations = queue.recorder.read();
  // The begin of a step that lasts may be overwritten.
  for (const auto& run : queue.active) {
    for (RecordedOperation& one : state.operations) {
      if (one.number != run->record()) continue;
      one.behind_stream = run->behind_stream();
      for (int index : run->steps_under_way()) {
        const bool known = std::any_of(one.steps.begin(), one.steps.end(),
                                       [&](const auto& step) { return step.index == index; });
        const Step& step = run->plan().steps[index];
        if (!known) one.steps.push_back({.index = index, .kind = step.kind, .peer = step.peer});
      }
    }
  }
  return state;
}

std::shared_ptr<Inquiries::Asked> Inquiries::make(const std::string& why, Inquiry inquiry,
                                                  Done done) {
  auto asked = std::make_shared<Asked>();
  inquiry.asker = group_.rank;
  inquiry.number = ++count_;
  asked->inquiry = inquiry;
  asked->done = std::move(done);
  GroupState& state = asked->state;
  state.group = group_.name;
  state.asker = group_.rank;
  state.why = why;
  state.places = group_.places;
  state.places.resize(group_.size);
  state.answers.resize(group_.size);
  state.silent.resize(group_.size);
  state.answers[group_.rank] = GroupState::Answer{own_state(inquiry)};
  for (int peer = 0; peer < group_.size; ++peer) {
    if (peer != group_.rank) asked->awaited.insert(peer);
  }
  give_up_absent(*asked);
  return asked;
}

void Inquiries::give_up_absent(Asked& asked) const {
  for (const auto& [peer, departure] : group_.departures) asked.give_up(peer, kLeft);
  for (const auto& [peer, since] : group_.lost) asked.give_up(peer, kGone);
}

void Inquiries::flood(std::shared_ptr<Asked> asked) {
  asked->at = Clock::now();
  group_.flood(asked->inquiry);
  asked_.push_back(std::move(asked));
}

void Inquiries::ask(const std::string& why, const Inquiry& inquiry, Done done) {
  std::shared_ptr<Asked> complete;
  {
    std::lock_guard lock(group_.mutex);
    auto asked = make(why, inquiry, std::move(done));
    if (group_.active() && !asked->awaited.empty()) {
      flood(std::move(asked));
    } else {
      for (int peer : asked->awaited) asked->state.silent[peer] = "was not asked: this rank leaves";
      complete = std::move(asked);
    }
  }
  if (complete) return complete->done(complete->state);
  group_.executor.wake_progress_thread();
}

void Inquiries::on_news(int from, const Inquiry& inquiry) {
  if (inquiry.occasion == Inquiry::Occasion::failure) asked_about_failure_ = true;
  if (inquiry.occasion == Inquiry::Occasion::timeout) note_inquiry_before_timeout(inquiry.sequence);
  inquirers_.emplace_back(inquiry, from);
  if (inquirers_.size() > kRememberedInquiries) inquirers_.pop_front();
  const bool every_step = inquiry.detail == Inquiry::Detail::steps;
  const size_t most = every_step ? kMostParts * kPartBytes : kPartBytes;
  RankState own = own_state(inquiry);
  own.now = now_ns();  // the time for reading the recorder would shift the clock's offset
  const std::string packed = own.pack(most, every_step);
  AnswerNews answer{.asker = inquiry.asker, .number = inquiry.number, .rank = group_.rank};
  answer.parts = std::max<uint64_t>((packed.size() + kPartBytes - 1) / kPartBytes, 1);
  for (answer.part = 0; answer.part < answer.parts; ++answer.part) {
    answer.text = packed.substr(answer.part * kPartBytes, kPartBytes);
    group_.tell(from, answer);
  }
}

void Inquiries::on_news(const AnswerNews& news) {
  if (news.asker != group_.rank) {
    const auto inquirer = std::find_if(inquirers_.begin(), inquirers_.end(), [&](const auto& one) {
      return one.first.asker == news.asker && one.first.number == news.number;
    });
    if (inquirer != inquirers_.end()) group_.tell(inquirer->second, news);
    return;
  }
  const auto found = std::find_if(asked_.begin(), asked_.end(), [&](const auto& one) {
    return one->inquiry.number == news.number;
  });
  if (found == asked_.end() || !(*found)->awaited.contains(news.rank)) return;  // too late
  Asked& asked = **found;
  std::vector<std::string>& parts = asked.parts[news.rank];
  parts.resize(news.parts);
  parts[news.part] = news.text;
  std::string packed;
  for (const std::string& part : parts) {
    if (part.empty()) return;
    packed += part;
  }
  asked.parts.erase(news.rank);
  asked.awaited.erase(news.rank);
  GroupState::Answer answer;
  try {
    answer.state = RankState::unpack(packed, group_.size);
  } catch (const Error& error) {  // the neighbour that passed it on is not to blame
    asked.state.silent[news.rank] = std::string("sent a malformed state: ") + error.what();
    return;
  }
  const int64_t sent = asked.at.time_since_epoch().count(), received = now_ns();
  answer.offset = sent + (received - sent) / 2 - answer.state.now;
  answer.error = (received - sent) / 2;
  asked.state.answers[news.rank] = std::move(answer);
}

// Without the mutex for the calls, because they may inquire again or write files.
void Inquiries::finish(bool all) {
  std::vector<std::shared_ptr<Asked>> over;
  {
    std::lock_guard lock(group_.mutex);
    for (auto& asked : asked_) {
      give_up_absent(*asked);
      if (!all && !asked->awaited.empty() && !asked->deadline.passed()) continue;
      for (int peer : asked->awaited) {
        asked->state.silent[peer] = "does not answer within " +
                                    format_seconds(Clock::now() - asked->at) +
                                    ": its process is stopped, or its host or network is gone";
      }
      over.push_back(std::move(asked));
    }
    std::erase(asked_, nullptr);
  }
  for (auto& asked : over) {
    share_clocks(asked->state);
    asked->done(asked->state);
  }
}

std::chrono::milliseconds Inquiries::wait_to_ask() const {
  return wait_of_turns(group_.rank, kTurn);
}

void Inquiries::call_roll(Done done) {
  flood(make("a rank is lost", {.detail = Inquiry::Detail::presence}, std::move(done)));
}

void Inquiries::ask_after_failure() {
  if (asked_about_failure_) return;
  const Status failure = group_.queue_failure();
  if (failure.ok() || failure.code() == Code::aborted) return;
  if (!failed_at_) failed_at_ = Clock::now();
  if (Clock::now() - *failed_at_ < wait_to_ask()) return;
  asked_about_failure_ = true;
  const auto detail = dumps_to_files() ? Inquiry::Detail::steps : Inquiry::Detail::operations;
  flood(make(failure.text(), {.detail = detail, .occasion = Inquiry::Occasion::failure},
             [rank = group_.rank](const GroupState& state) { tell_of_failure(state, rank); }));
}

void Inquiries::await_answers_about_failure(const std::function<void()>& poll) {
  const Deadline first(kFirstInquiryBound), answered(kAnswerBound + Monitor::interval);
  const auto waits = [&] {
    poll();
    std::lock_guard lock(group_.mutex);
    if (!group_.watching || !failed_at_) return false;
    return asked_about_failure_ ? !asked_.empty() && !answered.passed() : !first.passed();
  };
  while (waits()) std::this_thread::sleep_for(1ms);
}

}  // namespace hetcomm
