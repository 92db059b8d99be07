#include "health/health.h"

#include <poll.h>

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "base/log.h"
#include "exec/callbacks.h"
#include "health/dump.h"
#include "health/pace_watch.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

// A rank tells its neighbours of a failure, or its goodbye, before the process may end. A neighbour
// whose host is gone never acknowledges the news.
constexpr auto kTellBound = 250ms;
constexpr std::chrono::microseconds kFirstPause = 100us, kLongestPause = 5ms;

// A function of several types, from one function for each.
template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

}  // namespace

Health::Health(Executor& executor, std::shared_ptr<RunQueue> queue, int rank, int size,
               const std::string& address)
    : group_(executor, std::move(queue), rank, size, address, *this),
      silence_(group_),
      calls_(group_),
      lost_rails_(group_),
      inquiries_(group_),
      losses_(group_, calls_, inquiries_),
      figures_(group_) {}

void Health::introduce(std::string group, std::vector<RankPlace> places) {
  std::lock_guard lock(group_.mutex);
  group_.name = std::move(group);
  group_.places = std::move(places);
}

void Health::watch(int descriptor) {
  group_.watching ? group_.executor.watch(descriptor) : early_descriptors_.push_back(descriptor);
}

void Health::begin(Ring ring, const std::vector<ControlPlane::Neighbour>& ranks,
                   const std::string& group_key, const Deadline& deadline) {
  Status failure;
  try {
    // No other thread uses the connections yet.
    group_.control.connect(std::move(ring), ranks, group_key, deadline);
  } catch (const Error& error) {
    failure = error.status();
  }
  {
    std::lock_guard lock(group_.mutex);
    group_.watching = true;
    for (int descriptor : early_descriptors_) group_.executor.watch(descriptor);
    early_descriptors_.clear();
  }
  group_.executor.wake_progress_thread();  // for the proofs
  check(failure);
}

void Health::connect_rails(const std::vector<std::vector<std::string>>& addresses) {
  std::lock_guard lock(group_.mutex);
  group_.control.connect_rails(addresses);
}

void Health::watch_rails(std::unique_ptr<RailWatch> rails) {
  std::lock_guard lock(group_.mutex);
  lost_rails_.watch(std::move(rails));
}

void Health::use_stripes(std::vector<OwnStripe> stripes) {
  std::lock_guard lock(group_.mutex);
  lost_rails_.use_stripes(std::move(stripes));
}

void Health::await_proofs(const Deadline& deadline) {
  {
    std::lock_guard lock(group_.mutex);
    // The rest is for the news of a failure.
    group_.control.set_proof_deadline(deadline.left() * 3 / 4);
  }
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    poll();
    {
      std::lock_guard lock(group_.mutex);
      check(group_.cause);
      if (group_.control.proven() && group_.lost.empty()) return;
    }
    if (deadline.passed()) {
      throw Error(Code::timeout,
                  "control connections: not all neighbours have proven the group's "
                  "key in time; see whether all ranks run");
    }
    std::this_thread::sleep_for(pause);
  }
}

Status Health::cause() {
  std::lock_guard lock(group_.mutex);
  return group_.cause;
}

void Health::give_up(const Status& failure) {
  failed(failure);
  tell_failure();
}

void Health::complete() {
  std::lock_guard lock(group_.mutex);
  complete_ = true;
}

bool Health::member() {
  std::lock_guard lock(group_.mutex);
  return group_.active();
}

Status Health::lost_among(const std::vector<int>& ranks) {
  std::lock_guard lock(group_.mutex);
  const bool any = std::any_of(ranks.begin(), ranks.end(),
                               [this](int rank) { return group_.lost.contains(rank); });
  return any ? group_.losses() : Status();
}

// Without the mutex, because failing completes runs, and their listeners may take other locks.
void Health::deliver() {
  Status cause;
  {
    std::lock_guard lock(group_.mutex);
    if (group_.cause.ok() || delivered_) return;
    delivered_ = true;
    cause = group_.cause;
  }
  if (group_.executor.fail(*group_.queue, cause, kLockBound)) return;
  std::lock_guard lock(group_.mutex);
  delivered_ = false;  // the next poll tries again
  if (group_.active()) flood_once(cause);
}

void Health::flood_once(const Status& failure) {
  if (std::exchange(flooded_failure_, true)) return;
  group_.flood(FailureNews{failure});
  log(LogLevel::info, failure.text(), group_.rank);
}

void Health::say_goodbye(const Deadline& deadline) {
  {
    std::lock_guard lock(group_.mutex);
    if (!group_.active()) return;
    group_.said_goodbye = true;
    group_.flood(GoodbyeNews{.calls = group_.next_call,
                             .rails = lost_rails_.decided_rails(),
                             .refusal = calls_.refusal()});
  }
  while (!deadline.passed()) {
    std::vector<pollfd> pending;
    {
      std::lock_guard lock(group_.mutex);
      group_.control.poll();
      pending = group_.control.pending_output();
    }
    if (pending.empty()) return await_delivery();
    // Only this thread closes the connections.
    const auto turn = std::min<std::chrono::milliseconds>(deadline.left_ms(), interval);
    ::poll(pending.data(), pending.size(), static_cast<int>(turn.count()));
  }
}

void Health::end() {
  {
    std::lock_guard lock(group_.mutex);
    group_.watching = false;
    group_.control.close();
    lost_rails_.close();
  }
  inquiries_.finish(true);
}

void Health::poll() {
  bool complete;
  {
    std::lock_guard lock(group_.mutex);
    if (!group_.active()) return;
    complete = complete_;
    group_.begin_poll();
    group_.control.poll();
    silence_.check();  // the first check, because it sends this rank's heartbeats
    flood_failure();
    calls_.check_disputes();
    calls_.flood_refusal();
    losses_.check();
    if (complete) {
      lost_rails_.check();
      if (const auto stalled = calls_.check_stalls()) inquiries_.ask_before_timeout(*stalled);
      inquiries_.ask_after_failure();
    }
  }
  deliver();
  if (complete) {
    decide_trials();
    look_at_pace();
  }
  inquiries_.finish(false);
  look_at_dumps();
}

void Health::failed(const Status& status) {
  {
    std::lock_guard lock(group_.mutex);
    group_.fail(status);
  }
  deliver();
  std::lock_guard lock(group_.mutex);
  if (group_.active()) flood_failure();
}

void Health::tell_failure() {
  {
    std::lock_guard lock(group_.mutex);
    if (!group_.active()) return;
    flood_failure();
  }
  await_delivery();
}

// Until the hosts of all neighbours have all news of this rank. A connection that closes with
// unread input loses what is still on its way.
void Health::await_delivery() {
  for (const Deadline deadline(kTellBound); !deadline.passed();) {
    {
      std::lock_guard lock(group_.mutex);
      if (!group_.watching || group_.control.delivered()) return;
    }
    std::this_thread::sleep_for(1ms);
  }
}

void Health::on_lost(int peer) { group_.tell_loss({.rank = peer}); }

void Health::on_news(int origin, int from, bool flooded, const std::string& bytes) {
  const News news = unpack_news(bytes, origin, group_.size);
  if (flooded && is_for_neighbour(news)) {
    throw Error(Code::invalid_argument, "expected news for all ranks, got news for a neighbour");
  }
  std::visit(Overloaded{
                 [&](const FailureNews& one) { on_failure(one); },
                 [&](const GoodbyeNews& one) { on_goodbye(origin, one); },
                 [&](const SilenceNews& one) { silence_.on_news(one); },
                 [&](const StallNews& one) { calls_.on_news(origin, one); },
                 [&](const RefusalNews& one) { calls_.on_news(one); },
                 [&](const RailEnds& one) { lost_rails_.on_news(origin, one); },
                 [&](const FirstCallNews& one) { lost_rails_.on_news(origin, one); },
                 [&](const FiguresNews& one) { figures_.on_news(origin, one); },
                 [&](const Inquiry& one) { inquiries_.on_news(from, one); },
                 [&](const AnswerNews& one) { inquiries_.on_news(one); },
                 [&](const CulpritNews& one) { inquiries_.on_news(one); },
                 [&](const LossNews& one) { group_.note_loss(one); },
             },
             news);
}

void Health::on_failure(const FailureNews& news) {
  flooded_failure_ = true;  // the origin's news reaches all ranks
  group_.fail(news.why);
}

void Health::on_goodbye(int origin, const GoodbyeNews& news) {
  group_.departures[origin] = {news};
  group_.changed.notify_all();
  group_.lost.erase(origin);
  silence_.forget(origin);
}

void Health::on_malformed(int peer, const std::string& why) {
  group_.fail(Status(
      Code::peer_failed,
      "rank " + std::to_string(peer) + " sent a malformed record over its control connection: " +
          why + "; run the same hetcomm version on every rank, and see that rank's own log",
      group_.rank, peer));
}

void Health::flood_failure() {
  const Status failure = group_.queue_failure();
  if (failure.ok()) return;
  if (group_.cause.ok()) {  // this rank's own, which the executor knows
    delivered_ = true;
    group_.fail(failure);
  }
  flood_once(failure);
}

bool Health::record(const CallDescriptor& call, size_t left_out) {
  std::lock_guard lock(group_.mutex);
  if (!lost_rails_.leaves_out(left_out, call.sequence)) return false;
  calls_.record(call);
  return true;
}

void Health::report_refusal(const Status& why) {
  std::lock_guard lock(group_.mutex);
  calls_.report_refusal(why);
}

bool Health::leaves_out_lost_rails(size_t left_out, uint64_t sequence) {
  std::lock_guard lock(group_.mutex);
  return lost_rails_.leaves_out(left_out, sequence);
}

std::vector<RailEnds> Health::lost_rails(uint64_t sequence, const Deadline& deadline) {
  std::unique_lock lock(group_.mutex);
  return lost_rails_.await(lock, sequence, deadline);
}

void Health::report(const std::string& trial, int64_t round, const CodecFigures& own) {
  std::lock_guard lock(group_.mutex);
  figures_.add({trial, round, own});
  if (figures_.has_results()) group_.executor.wake_progress_thread();
}

// Without the mutex, because pricing plans takes time.
void Health::decide_trials() {
  std::vector<FiguresNews> results;
  std::map<std::string, std::shared_ptr<CodecTrial>> trials;
  {
    std::lock_guard lock(group_.mutex);
    if (!figures_.has_results()) return;
    const auto held = group_.hold();
    if (!held) return;
    trials = group_.queue->trials;
    results = figures_.take_results();
  }
  for (const FiguresNews& sum : results) {
    const auto found = trials.find(sum.trial);
    const auto trial = found == trials.end() ? nullptr : found->second;
    if (trial) {
      trial->decide(sum.round, sum.figures);
    } else {
      log(LogLevel::warning, "codec figures of a trial that this rank does not make: " + sum.trial,
          group_.rank);
    }
  }
}

void Health::inquire(const std::string& why, const Inquiry& inquiry, Inquiries::Done done) {
  inquiries_.ask(why, inquiry, std::move(done));
}

void Health::await_inquiry_after_failure() {
  inquiries_.await_answers_about_failure([this] { poll(); });
  await_dumps();
}

void Health::watch_pace(Predicted predicted, std::chrono::nanoseconds period) {
  if (group_.rank == 0) pace_ = std::make_shared<PaceWatch>(std::move(predicted), period);
}

void Health::look_at_pace() {
  if (!pace_) return;
  {
    std::lock_guard lock(group_.mutex);
    if (!group_.cause.ok() || !group_.departures.empty() || group_.next_call == 0) return;
  }
  const auto inquiry = pace_->due();
  if (!inquiry) return;
  inquire("the pace of the group", *inquiry, [pace = pace_](const GroupState& state) {
    run_callback([=] { run_logged([&] { pace->judge(state); }); });
  });
}

GroupTotals Health::totals() {
  std::lock_guard lock(group_.mutex);
  GroupTotals& found = totals_;
  found.group = group_.name;
  found.rank = group_.rank;
  found.stalls = calls_.stalls();
  if (pace_) found.late = pace_->late(found.compared);
  if (const auto held = group_.hold()) {
    found.collectives = group_.queue->recorder.totals();
    found.failed = !group_.queue->failure.ok();
  }
  return found;
}

}  // namespace hetcomm
