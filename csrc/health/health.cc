#include "health/health.h"

#include <poll.h>

#include <algorithm>

#include "base/log.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

// After this time a rank whose connection ended without a goodbye counts as dead. Until then its
// last messages may still arrive.
constexpr auto kGrace = 500ms;

}  // namespace

Health::Health(Executor& executor, std::shared_ptr<RunQueue> queue, int rank, int size,
               const std::string& address)
    : executor_(executor),
      queue_(std::move(queue)),
      rank_(rank),
      size_(size),
      control_(rank, size, address, *this) {}

void Health::watch(int descriptor) {
  watching_ ? executor_.watch(descriptor) : early_descriptors_.push_back(descriptor);
}

void Health::begin(const std::vector<std::string>& contacts, const std::string& secret,
                   const Deadline& deadline) {
  control_.connect(contacts, secret, deadline);  // no other thread uses the connections yet
  std::lock_guard lock(mutex_);
  watching_ = true;
  for (int descriptor : early_descriptors_) executor_.watch(descriptor);
  early_descriptors_.clear();
}

void Health::fail(const Status& status) {
  if (cause_.ok()) cause_ = status;
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
                        .why = refusal_ ? refusal_->why : Status()}
                       .pack());
  }
  while (!deadline.passed()) {
    std::vector<pollfd> writable;
    {
      std::lock_guard lock(mutex_);
      control_.poll();
      for (int descriptor : control_.pending_output()) writable.push_back({descriptor, POLLOUT, 0});
    }
    if (writable.empty()) return;
    // Only this thread closes the connections.
    const auto turn = std::min<std::chrono::milliseconds>(deadline.left_ms(), interval);
    ::poll(writable.data(), writable.size(), static_cast<int>(turn.count()));
  }
}

void Health::end() {
  std::lock_guard lock(mutex_);
  watching_ = false;
  control_.close();
  rails_.reset();
}

void Health::poll() {
  {
    std::lock_guard lock(mutex_);
    if (!watching_ || said_goodbye_) return;
    control_.poll();
    flood_failure();
    flood_refusal();
    check_lost();
    check_rails();
    check_stalls();
    tell_waiting();
  }
  deliver();
  decide_trials();
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

void Health::on_lost(int peer) {
  if (departures_.count(peer) == 0) lost_.emplace(peer, Clock::now());
  executor_.wake_progress_thread();
}

void Health::on_news(int origin, const std::string& bytes) {
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
        compare(origin, news.call);
      } else if (early_calls_.size() < 4096) {
        early_calls_.emplace(news.call.sequence, std::make_pair(origin, news.call));
      }
      return;
    case News::Kind::goodbye:
      departures_[origin] = {news.sequence, Clock::now(),
                             news.why.ok() ? "" : news.why.details().message};
      lost_.erase(origin);
      return;
    case News::Kind::refusal:
      peer_refusals_[news.sequence] = {news.why};
      while (peer_refusals_.size() > kRemembered) peer_refusals_.erase(peer_refusals_.begin());
      return;
    case News::Kind::figures:
      return on_figures(origin, news);
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
  if (failure.ok() || flooded_failure_) return;
  flooded_failure_ = true;
  control_.flood(News{.kind = News::Kind::failure, .why = failure}.pack());
  log(LogLevel::info, failure.text(), rank_);
}

void Health::check_lost() {
  for (const auto& [peer, since] : lost_) {
    if (Clock::now() - since < kGrace) continue;
    fail(Status(Code::peer_failed,
                "rank " + std::to_string(peer) +
                    " is gone: its process ended or its host became unreachable; see its own log",
                rank_, peer));
    return;
  }
}

void Health::check_rails() {
  if (!rails_) return;
  if (const Status failure = rails_->next_failure(); !failure.ok()) fail(failure);
}

}  // namespace hetcomm
