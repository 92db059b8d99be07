#include "health/health.h"

#include <poll.h>

#include <algorithm>
#include <bit>

#include "base/config.h"
#include "base/log.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

// A rank whose connection ended without a goodbye is declared dead after this long: what it had
// sent before may still be arriving.
constexpr auto kGrace = 500ms;
// An operation older than this is told to the others, so that calls can be compared.
constexpr auto kStall = 1s;
// Most ranks stall at once and one of them is enough: lower ranks tell first, and others only what
// nobody has told by then.
constexpr auto kTurn = Monitor::interval;
// So long before an operation times out, a better reason that is known takes its place.
constexpr auto kLastWord = 2 * Monitor::interval;

bool same_call(CallDescriptor a, CallDescriptor b) {
  a.step = b.step = 0;
  return a == b;
}

std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

std::string describe(const CallDescriptor& call) {
  // A peer wrote it: anything may be in there.
  if (call.collective > static_cast<uint16_t>(Collective::recv) || call.dtype >= kDtypes ||
      call.op >= kReduceOps) {
    return "an unknown operation";
  }
  Spec spec;
  spec.collective = static_cast<Collective>(call.collective);
  spec.dtype = static_cast<Dtype>(call.dtype);
  spec.op = static_cast<ReduceOp>(call.op);
  spec.factor = call.factor;
  spec.root = static_cast<int>(call.root);
  spec.count = static_cast<int64_t>(call.count);
  char history[32];
  std::snprintf(history, sizeof history, " (history %04llx)",
                static_cast<unsigned long long>(call.history & 0xffff));
  return describe(spec) + history;
}

Health::Health(Executor& executor, std::shared_ptr<RunQueue> queue, int rank, int size,
               const std::string& address)
    : executor_(executor),
      queue_(std::move(queue)),
      rank_(rank),
      control_(
          rank, size, address,
          {.lost = [this](int peer) { on_lost(peer); },
           .news =
               [this, size](int origin, const std::string& news) {
                 on_news(origin, News::unpack(news, origin, size));
               },
           .malformed = [this](int peer, const std::string& why) { on_malformed(peer, why); }},
          [this](int descriptor) {
            if (begun_) {
              executor_.watch(descriptor);
            } else {
              unwatched_.push_back(descriptor);
            }
          },
          [this](int descriptor) { executor_.unwatch(descriptor); }) {}

void Health::begin(const std::vector<std::string>& contacts, const std::string& secret,
                   const Deadline& deadline) {
  control_.connect(contacts, secret, deadline);  // nobody else uses it yet
  std::lock_guard lock(mutex_);
  begun_ = true;
  for (int descriptor : unwatched_) executor_.watch(descriptor);
  unwatched_.clear();
}

void Health::record(const CallDescriptor& call) {
  std::lock_guard lock(mutex_);
  calls_[call.sequence % kRemembered] = call;
  next_call_ = call.sequence + 1;
  refused_.reset();
  if (ahead_.empty()) return;
  auto [from, to] = ahead_.equal_range(call.sequence);
  for (auto told = from; told != to; ++told) compare(told->second.first, told->second.second);
  ahead_.erase(from, to);
  executor_.kick();  // poll() delivers what was found
}

void Health::report_refusal(const Status& why) {
  std::lock_guard lock(mutex_);
  Status::Details details;
  details.code = why.code();
  details.message = "rank " + std::to_string(rank_) + " on " + host_name() +
                    " is missing in collective #" + std::to_string(next_call_) +
                    ": its call was refused there: " + why.details().message;
  details.rank = details.peer = rank_;
  refused_ = Refusal{Status(details)};
}

void Health::fail(const Status& status) {
  if (cause_.ok()) cause_ = status;
}

// Failing completes runs and so calls their listeners, who may take locks of their own: never done
// under this mutex.
void Health::deliver() {
  Status cause;
  {
    std::lock_guard lock(mutex_);
    if (cause_.ok() || delivered_) return;
    delivered_ = true;
    cause = cause_;
  }
  executor_.fail(*queue_, cause);
}

void Health::compare(int peer, const CallDescriptor& theirs) {
  const CallDescriptor mine = calls_[theirs.sequence % kRemembered];
  if (mine.sequence != theirs.sequence || same_call(mine, theirs)) return;
  fail(Status(Code::invalid_argument,
              "ranks disagree about collective #" + std::to_string(theirs.sequence) + ": rank " +
                  std::to_string(rank_) + " called " + describe(mine) + ", rank " +
                  std::to_string(peer) + " called " + describe(theirs) +
                  "; make the same calls in the same order on every rank (another "
                  "history: an earlier call differed already)",
              rank_, peer));
}

void Health::say_goodbye(const Deadline& deadline) {
  {
    std::lock_guard lock(mutex_);
    if (said_goodbye_ || !begun_) return;
    said_goodbye_ = true;
    control_.flood(News{.kind = News::Kind::goodbye,
                        .sequence = next_call_,
                        .why = refused_ ? refused_->why : Status()}
                       .pack());
  }
  while (!deadline.passed()) {
    std::vector<pollfd> unwritten;
    {
      std::lock_guard lock(mutex_);
      control_.poll();
      for (int descriptor : control_.unwritten()) unwritten.push_back({descriptor, POLLOUT, 0});
    }
    if (unwritten.empty()) return;
    // Only this thread closes them. It looks at the rest after a turn at the latest.
    const auto turn = std::min<std::chrono::milliseconds>(deadline.left_ms(), kTurn);
    ::poll(unwritten.data(), unwritten.size(), static_cast<int>(turn.count()));
  }
}

void Health::end() {
  std::lock_guard lock(mutex_);
  begun_ = false;
  control_.close();
  rails_.reset();
}

void Health::poll() {
  {
    std::lock_guard lock(mutex_);
    if (!begun_ || said_goodbye_) return;
    control_.poll();
    tell_failure();
    tell_refusal();
    look_for_departed();
    look_at_rails();
    look_for_stall();
  }
  deliver();
}

void Health::failed(const Status& status) {
  {
    std::lock_guard lock(mutex_);
    fail(status);
  }
  deliver();
  std::lock_guard lock(mutex_);
  if (begun_ && !said_goodbye_) tell_failure();
}

void Health::on_lost(int peer) {
  if (left_.count(peer) == 0) lost_.emplace(peer, Clock::now());
  executor_.kick();
}

void Health::on_news(int origin, const News& news) {
  switch (news.kind) {
    case News::Kind::failure: {
      Status::Details details = news.why.details();
      details.rank = origin;
      told_failure_ = true;  // everybody hears it from its origin
      fail(Status(std::move(details)));
      return;
    }
    case News::Kind::stall:
      note_stall(news.call.sequence, origin);
      if (news.call.sequence < next_call_) {
        compare(origin, news.call);
      } else if (ahead_.size() < 4096) {
        ahead_.emplace(news.call.sequence, std::make_pair(origin, news.call));
      }
      return;
    case News::Kind::goodbye:
      left_[origin] = {news.sequence, Clock::now(),
                       news.why.ok() ? "" : news.why.details().message};
      lost_.erase(origin);
      return;
    case News::Kind::refusal:
      refusals_[news.sequence] = {news.why};
      while (refusals_.size() > kRemembered) refusals_.erase(refusals_.begin());
      return;
  }
}

void Health::on_malformed(int peer, const std::string& why) {
  fail(Status(Code::peer_failed,
              "rank " + std::to_string(peer) +
                  " sent a malformed record over its control connection: " + why +
                  "; run the same hetcomm version on every rank, and see that rank's own log",
              rank_, peer));
}

void Health::tell_failure() {
  Status failure;
  {
    const auto held = executor_.lock();
    failure = queue_->failure;
  }
  if (failure.ok() || told_failure_) return;
  told_failure_ = true;
  control_.flood(News{.kind = News::Kind::failure, .why = failure}.pack());
  log(LogLevel::info, failure.text(), rank_);
}

void Health::note_stall(uint64_t sequence, int rank) {
  stalled_[sequence].push_back(rank);
  while (stalled_.size() > kRemembered) stalled_.erase(stalled_.begin());
}

// Only somebody who waits needs to know; whoever was refused may yet make the right call.
void Health::tell_refusal() {
  if (!refused_ || refused_->told || ahead_.count(next_call_) == 0) return;
  refused_->told = true;
  control_.flood(
      News{.kind = News::Kind::refusal, .sequence = next_call_, .why = refused_->why}.pack());
}

void Health::look_for_departed() {
  for (const auto& [peer, since] : lost_) {
    if (Clock::now() - since < kGrace) continue;
    fail(Status(Code::peer_failed,
                "rank " + std::to_string(peer) +
                    " is gone: its process ended or its host became unreachable; see its own log",
                rank_, peer));
    return;
  }
}

void Health::look_at_rails() {
  if (!rails_) return;
  if (const Status lost = rails_->lost(); !lost.ok()) fail(lost);
}

void Health::look_for_stall() {
  std::shared_ptr<Run> oldest;
  std::vector<std::shared_ptr<Run>> active;
  {
    const auto held = executor_.lock();
    active = queue_->active;
  }
  for (const auto& run : active) {
    if (run->age() < kStall) continue;
    for (const auto& [peer, departure] : left_) {
      const bool message = run->lane() < 0;
      const bool awaited =
          message ? run->plan().spec.root == peer && Clock::now() - departure.at > kStall
                  : departure.calls <= run->call().sequence;
      if (!awaited) continue;
      fail(Status(Code::peer_failed,
                  "rank " + std::to_string(peer) + " has left the group after " +
                      std::to_string(departure.calls) + " collectives, but this rank is in " +
                      run->describe() + "; make the same calls on every rank" +
                      (departure.refusal.empty() ? "" : "; " + departure.refusal),
                  rank_, peer));
      return;
    }
    if (run->lane() < 0) continue;
    if (!oldest || run->call().sequence < oldest->call().sequence) oldest = run;
  }
  if (!oldest) return;
  auto refusal = refusals_.find(oldest->call().sequence);
  if (refusal != refusals_.end()) {
    const Status& why = refusal->second.why;
    if (!refusal->second.told) log(LogLevel::warning, "waiting in vain? " + why.text(), rank_);
    refusal->second.told = true;
    if (oldest->deadline().left() < kLastWord) fail(why);
  }
  tell_stall(*oldest);
}

void Health::tell_stall(const Run& run) {
  const uint64_t sequence = run.call().sequence;
  if (stall_told_ > sequence) return;
  const auto turn = std::bit_width(static_cast<unsigned>(rank_)) * kTurn;
  const bool known = stalled_.count(sequence) > 0;
  if (!known && (run.age() < kStall + turn || Clock::now() - stall_at_ < kStall)) return;
  stall_told_ = sequence + 1;
  note_stall(sequence, rank_);
  log(LogLevel::info,
      run.describe() + " has not completed within a second; ranks known to wait in it: " +
          list(stalled_[sequence]),
      rank_);
  if (known) return;  // calls alike need no more news, and others were compared
  stall_at_ = Clock::now();
  control_.flood(News{.kind = News::Kind::stall, .call = run.call()}.pack());
  log(LogLevel::debug, "tells the others that it waits in " + run.describe(), rank_);
}

}  // namespace hetcomm
