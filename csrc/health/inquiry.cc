// A rank asks all others for their state. The question floods. Each rank answers to the neighbour
// from which it heard the question first, so answers take a way that just worked.

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>

#include "base/config.h"
#include "base/log.h"
#include "health/dump.h"
#include "health/health.h"
#include "health/path_rates.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

constexpr auto kAnswerBound = 1s;
// A library may stand still while it has the executor's lock.
constexpr auto kLockBound = 200ms;
// After a failure and before a timeout one inquiry is enough, so lower ranks ask first. A rank asks
// at its turn unless another inquiry has come.
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
struct Health::Asked {
  Inquiry inquiry;
  Clock::time_point at = Clock::now();
  Deadline deadline{kAnswerBound};
  GroupState state;
  std::set<int> awaited;
  std::map<int, std::vector<std::string>> parts;  // of incomplete answers, by rank
  Inquired done;
};

bool Health::member() {
  std::lock_guard lock(mutex_);
  return watching_ && !said_goodbye_;
}

void Health::introduce(std::string group, std::vector<RankPlace> places) {
  std::lock_guard lock(mutex_);
  group_ = std::move(group);
  places_ = std::move(places);
  clock_ = clock_name();
}

RankState Health::own_state(const Inquiry& inquiry) {
  RankState state{.process = static_cast<uint64_t>(getpid()), .clock = clock_, .calls = next_call_};
  const auto held = executor_.lock_within(kLockBound);
  state.now = now_ns();
  if (!held) {
    state.note = "its operations are unknown, because a thread has been inside a library for " +
                 format_seconds(kLockBound);
    return state;
  }
  if (inquiry.detail == Inquiry::Detail::pace) {
    const size_t each = Arrivals::kEach * kFullSampleRanks / std::max(size_, kFullSampleRanks);
    state.arrivals = queue_->recorder.arrivals(inquiry.sequence, std::max(each, kFewestOfLevel));
    state.messages = long_messages(queue_->recorder.read(), inquiry.sequence);
    return state;
  }
  state.operations = queue_->recorder.read();
  // The begin of a step that lasts may be overwritten.
  for (const auto& run : queue_->active) {
    for (RecordedOperation& one : state.operations) {
      if (one.number != run->record()) continue;
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

std::shared_ptr<Health::Asked> Health::ask(const std::string& why, Inquiry inquiry, Inquired done) {
  auto asked = std::make_shared<Asked>();
  inquiry.asker = rank_;
  inquiry.number = ++inquiries_;
  asked->inquiry = inquiry;
  asked->done = std::move(done);
  GroupState& state = asked->state;
  state.group = group_;
  state.asker = rank_;
  state.why = why;
  state.places = places_;
  state.places.resize(size_);
  state.answers.resize(size_);
  state.silent.resize(size_);
  state.answers[rank_] = GroupState::Answer{own_state(inquiry)};
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    if (departures_.count(peer) > 0) {
      state.silent[peer] = "has left the group";
    } else if (lost_.count(peer) > 0) {
      state.silent[peer] = "is gone: its process ended or its host became unreachable";
    } else {
      asked->awaited.insert(peer);
    }
  }
  return asked;
}

void Health::flood(std::shared_ptr<Asked> asked) {
  asked->at = Clock::now();
  control_.flood(News{.kind = News::Kind::inquiry, .inquiry = asked->inquiry}.pack());
  asked_.push_back(std::move(asked));
}

void Health::inquire(const std::string& why, const Inquiry& inquiry, Inquired done) {
  std::shared_ptr<Asked> complete;
  {
    std::lock_guard lock(mutex_);
    auto asked = ask(why, inquiry, std::move(done));
    if (watching_ && !said_goodbye_ && !asked->awaited.empty()) {
      flood(std::move(asked));
    } else {
      for (int peer : asked->awaited) asked->state.silent[peer] = "was not asked: this rank leaves";
      complete = std::move(asked);
    }
  }
  if (complete) return complete->done(complete->state);
  executor_.wake_progress_thread();
}

void Health::on_inquiry(int from, const Inquiry& inquiry) {
  if (inquiry.occasion == Inquiry::Occasion::failure) inquired_after_failure_ = true;
  if (inquiry.occasion == Inquiry::Occasion::timeout) note_inquiry(inquiry.sequence);
  inquirers_.emplace_back(inquiry, from);
  if (inquirers_.size() > kRememberedInquiries) inquirers_.pop_front();
  const bool every_step = inquiry.detail == Inquiry::Detail::steps;
  const size_t most = every_step ? kMostParts * kPartBytes : kPartBytes;
  RankState own = own_state(inquiry);
  own.now = now_ns();  // the time for reading the recorder would shift the clock's offset
  const std::string packed = own.pack(most, every_step);
  News answer{.kind = News::Kind::answer, .inquiry = inquiry, .rank = rank_};
  answer.parts = std::max<uint64_t>((packed.size() + kPartBytes - 1) / kPartBytes, 1);
  for (answer.part = 0; answer.part < answer.parts; ++answer.part) {
    answer.text = packed.substr(answer.part * kPartBytes, kPartBytes);
    control_.tell(from, answer.pack());
  }
}

void Health::on_answer(const News& news) {
  if (news.inquiry.asker != rank_) {
    const auto inquirer = std::find_if(inquirers_.begin(), inquirers_.end(), [&](const auto& one) {
      return one.first.asker == news.inquiry.asker && one.first.number == news.inquiry.number;
    });
    if (inquirer != inquirers_.end()) control_.tell(inquirer->second, news.pack());
    return;
  }
  const auto found = std::find_if(asked_.begin(), asked_.end(), [&](const auto& one) {
    return one->inquiry.number == news.inquiry.number;
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
    answer.state = RankState::unpack(packed, size_);
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
void Health::finish_inquiries(bool all) {
  std::vector<std::shared_ptr<Asked>> over;
  {
    std::lock_guard lock(mutex_);
    for (auto& asked : asked_) {
      for (const auto& [peer, since] : lost_) {
        if (asked->awaited.erase(peer) == 0) continue;
        asked->state.silent[peer] = "is gone: its process ended or its host became unreachable";
      }
      for (const auto& [peer, departure] : departures_) {
        if (asked->awaited.erase(peer) > 0) asked->state.silent[peer] = "has left the group";
      }
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

std::chrono::milliseconds Health::turn_to_inquire() const {
  return std::bit_width(static_cast<unsigned>(rank_)) * kTurn;
}

// Under the mutex.
void Health::inquire_after_failure() {
  if (inquired_after_failure_) return;
  Status failure;
  {
    const auto held = executor_.lock();
    failure = queue_->failure;
  }
  if (failure.ok() || failure.code() == Code::aborted) return;
  if (!failed_at_) failed_at_ = Clock::now();
  if (Clock::now() - *failed_at_ < turn_to_inquire()) return;
  inquired_after_failure_ = true;
  const auto detail = dumps_to_files() ? Inquiry::Detail::steps : Inquiry::Detail::operations;
  flood(ask(failure.text(), {.detail = detail, .occasion = Inquiry::Occasion::failure},
            [rank = rank_](const GroupState& state) { tell_of_failure(state, rank); }));
}

void Health::await_inquiry_after_failure() {
  const Deadline first(kFirstInquiryBound), answered(kAnswerBound + Monitor::interval);
  const auto waits = [&] {
    poll();
    std::lock_guard lock(mutex_);
    if (!watching_ || !failed_at_) return false;
    return inquired_after_failure_ ? !asked_.empty() && !answered.passed() : !first.passed();
  };
  while (waits()) std::this_thread::sleep_for(1ms);
}

}  // namespace hetcomm
