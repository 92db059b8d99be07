#include "health/health.h"

#include <poll.h>

#include <algorithm>
#include <thread>

#include "base/log.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

// After this time a rank whose connection ended without a goodbye counts as dead. Until then a
// kernel delivers what the rank has sent, and other ranks tell an earlier cause. On one host no
// message is on a wire, so the time is only for ranks that wait for a processor.
constexpr auto kGrace = 500ms;
constexpr auto kGraceOnOneHost = 100ms;
// A rank tells its neighbours of a failure, or its goodbye, before the process may end. A neighbour
// whose host is gone never acknowledges the news.
constexpr auto kTellBound = 250ms;
constexpr std::chrono::microseconds kFirstPause = 100us, kLongestPause = 5ms;

}  // namespace

Health::Health(Executor& executor, std::shared_ptr<RunQueue> queue, int rank, int size,
               const std::string& address)
    : executor_(executor),
      queue_(std::move(queue)),
      rank_(rank),
      size_(size),
      grace_(kGrace),
      control_(rank, size, address, *this) {}

void Health::share_host() { grace_ = kGraceOnOneHost; }

void Health::watch(int descriptor) {
  watching_ ? executor_.watch(descriptor) : early_descriptors_.push_back(descriptor);
}

void Health::begin(const std::vector<ControlPlane::Neighbour>& ranks, const std::string& group_key,
                   const Deadline& deadline) {
  control_.connect(ranks, group_key, deadline);  // no other thread uses the connections yet
  std::lock_guard lock(mutex_);
  watching_ = true;
  for (int descriptor : early_descriptors_) executor_.watch(descriptor);
  early_descriptors_.clear();
}

void Health::await_proofs(const Deadline& deadline) {
  {
    std::lock_guard lock(mutex_);
    control_.set_proof_deadline(deadline.left() * 3 / 4);  // the rest is for the news of a failure
  }
  for (auto pause = kFirstPause; !deadline.passed(); pause = std::min(2 * pause, kLongestPause)) {
    poll();
    {
      std::lock_guard lock(mutex_);
      if (!watching_ || !cause_.ok() || (control_.proven() && lost_.empty())) return;
    }
    std::this_thread::sleep_for(pause);
  }
}

void Health::fail(const Status& status) {
  if (cause_.ok()) cause_ = status;
  agreed_changed_.notify_all();
}

// Without the mutex, because failing completes runs, and their listeners may take other locks.
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

void Health::say_goodbye(const Deadline& deadline) {
  {
    std::lock_guard lock(mutex_);
    if (said_goodbye_ || !watching_) return;
    said_goodbye_ = true;
    control_.flood(News{.kind = News::Kind::goodbye,
                        .sequence = next_call_,
                        .rails = first_calls_.size(),
                        .why = refusal_ ? refusal_->why : Status()}
                       .pack());
  }
  while (!deadline.passed()) {
    std::vector<pollfd> pending;
    {
      std::lock_guard lock(mutex_);
      control_.poll();
      pending = control_.pending_output();
    }
    if (pending.empty()) return await_delivery();
    // Only this thread closes the connections.
    const auto turn = std::min<std::chrono::milliseconds>(deadline.left_ms(), interval);
    ::poll(pending.data(), pending.size(), static_cast<int>(turn.count()));
  }
}

void Health::end() {
  {
    std::lock_guard lock(mutex_);
    watching_ = false;
    control_.close();
    rails_.reset();
  }
  finish_inquiries(true);
}

void Health::poll() {
  {
    std::lock_guard lock(mutex_);
    if (!watching_ || said_goodbye_) return;
    control_.poll();
    check_silence();  // the first check, because it sends this rank's heartbeats
    flood_failure();
    check_disputes();
    flood_refusal();
    check_lost();
    check_rails();
    check_stalls();
    inquire_after_failure();
  }
  deliver();
  decide_trials();
  look_at_pace();
  finish_inquiries(false);
}

void Health::failed(const Status& status) {
  {
    std::lock_guard lock(mutex_);
    fail(status);
  }
  deliver();
  std::lock_guard lock(mutex_);
  if (watching_ && !said_goodbye_) flood_failure();
}

void Health::tell_failure() {
  {
    std::lock_guard lock(mutex_);
    if (!watching_ || said_goodbye_) return;
    flood_failure();
  }
  await_delivery();
}

// Until the hosts of all neighbours have all news of this rank. A connection that closes with
// unread input loses what is still on its way.
void Health::await_delivery() {
  for (const Deadline deadline(kTellBound); !deadline.passed();) {
    {
      std::lock_guard lock(mutex_);
      if (!watching_ || control_.delivered()) return;
    }
    std::this_thread::sleep_for(1ms);
  }
}

void Health::on_lost(int peer) {
  if (departures_.count(peer) > 0) return;
  lost_.emplace(peer, Clock::now());
  executor_.poll_by(Clock::now() + grace_);  // for check_lost()
}

void Health::on_news(int origin, int from, const std::string& bytes) {
  const News news = News::unpack(bytes, origin, size_);
  switch (news.kind) {
    case News::Kind::failure: {
      Status::Details details = news.why.details();
      details.rank = origin;
      flooded_failure_ = true;  // the origin's news reaches all ranks
      fail(Status(std::move(details)));
      return;
    }
    case News::Kind::stall:
      note_stall(news.call.sequence, origin);
      if (news.call.sequence < next_call_) {
        different_.push_back({origin, news.call, news.caller});
      } else if (early_calls_.size() < 4096) {
        early_calls_.emplace(news.call.sequence, PeerCall{origin, news.call, news.caller});
      }
      return;
    case News::Kind::goodbye:
      departures_[origin] = {news.sequence, news.rails, Clock::now(),
                             news.why.ok() ? "" : news.why.details().message};
      agreed_changed_.notify_all();
      lost_.erase(origin);
      silent_.erase(origin);
      note_silence(origin, true);
      return;
    case News::Kind::refusal:
      peer_refusals_[news.sequence] = {news.why};
      while (peer_refusals_.size() > kRemembered) peer_refusals_.erase(peer_refusals_.begin());
      return;
    case News::Kind::culprit:
      return note_culprit(news.sequence, news.why);
    case News::Kind::rail:
      return on_rail(origin, news.rail);
    case News::Kind::figures:
      return on_figures(origin, news);
    case News::Kind::inquiry:
      return on_inquiry(from, news.inquiry);
    case News::Kind::answer:
      return on_answer(news);
    case News::Kind::silence:
      note_silence(news.about, news.ended);
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

void Health::flood_failure() {
  Status failure;
  {
    const auto held = executor_.lock();
    failure = queue_->failure;
  }
  if (failure.ok()) return;
  if (cause_.ok()) {  // this rank's own, which the executor knows
    delivered_ = true;
    fail(failure);
  }
  if (flooded_failure_) return;
  flooded_failure_ = true;
  control_.flood(News{.kind = News::Kind::failure, .why = failure}.pack());
  log(LogLevel::info, failure.text(), rank_);
}

void Health::check_lost() {
  for (const auto& [peer, since] : lost_) {
    if (Clock::now() - since < grace_) continue;
    if (const auto disputed = disputed_run()) return fail(disputed->dispute());
    fail(Status(Code::peer_failed,
                "rank " + std::to_string(peer) +
                    " is gone: its process ended or its host became unreachable; see its own log",
                rank_, peer));
    return;
  }
}

}  // namespace hetcomm
