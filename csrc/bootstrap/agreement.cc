#include "bootstrap/agreement.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/config.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

const char* const kFirstFailure = "failed";  // its key
// A rank that waits for another rank looks after such turns whether a third rank has failed. Ranks
// that fail together publish their failures within the first turn.
constexpr std::chrono::nanoseconds kFirstTurn = 1s, kLongestTurn = 4s;
// A rank whose failure may be a consequence waits so long for the cause.
constexpr std::chrono::nanoseconds kPatience = 3s;
// A peer's part may end with the deadline, and its failure comes after that.
constexpr std::chrono::nanoseconds kLateResults = 2s;
constexpr auto kReportBound = 1s;    // to publish a failure
constexpr auto kLook = 100ms;        // for an answer of the store
constexpr auto kImprecision = 20ms;  // of a store's timeout

// The first character of a published result: success, a failure of this rank by itself, or a
// failure that may be the consequence of another rank's failure. A failure follows as packed().
constexpr char kSuccess = '+', kOwnFailure = '-', kConsequence = '~';

bool may_be_consequence(const Status& status) {
  return status.code() == Code::timeout || status.code() == Code::peer_failed ||
         status.code() == Code::transport;
}

Status status_in_set_up(const std::exception& error) {
  if (dynamic_cast<const Error*>(&error) != nullptr) return status_of(error);
  return Status(Code::transport, std::string("set-up: ") + error.what());
}

// What control connections know does not end waits for the store meanwhile.
class Heedless {
 public:
  explicit Heedless(bool& heeds) : heeds_(heeds), before_(std::exchange(heeds, false)) {}
  ~Heedless() { heeds_ = before_; }

 private:
  bool& heeds_;
  const bool before_;
};

bool of_store(const Error& error) { return dynamic_cast<const StoreError*>(&error) != nullptr; }

// The rank that is the cause, and the message.
std::string packed(const Status& failure) {
  return std::to_string(failure.details().peer) + " " + failure.details().message;
}

}  // namespace

Agreement::Agreement(Store& store, int rank, int size, std::string group, const Deadline& deadline,
                     Watch watch)
    : store_(store),
      rank_(rank),
      size_(size),
      group_(std::move(group)),
      deadline_(deadline),
      results_due_(deadline.left() + kLateResults),
      watch_(std::move(watch)),
      spare_(eventfd(0, EFD_CLOEXEC)) {}

std::vector<std::string> Agreement::stage(const std::string& name,
                                          const std::function<std::string()>& part) {
  std::vector<std::string> results(size_);
  Status cause;
  const std::string own = name + "/" + std::to_string(rank_);
  try {
    results[rank_] = part();
    store_.set(own, kSuccess + results[rank_], deadline_);
  } catch (const std::exception& error) {
    cause = publish(error);
    const char sign = may_be_consequence(cause) ? kConsequence : kOwnFailure;
    const Heedless heedless(heeds_watch_);
    try {
      store_.set(own, sign + packed(cause), *report_);
    } catch (const Error&) {  // the store is the cause, or other ranks learn of it otherwise
    }
  }
  std::optional<Deadline> patience;  // from the first failure on
  for (int peer = 0; peer < size_ && (cause.ok() || may_be_consequence(cause)); ++peer) {
    if (peer == rank_) continue;
    if (!cause.ok() && !patience) patience.emplace(std::min(results_due_.left(), kPatience));
    if (patience && patience->passed()) break;
    try {
      results[peer] = get(name + "/" + std::to_string(peer), patience.value_or(results_due_));
    } catch (const Error& error) {
      // A rank that another rank holds for the cause knows more.
      const int teller = error.status().details().rank;
      const bool of_culprit = teller >= 0 && teller == error.status().details().peer;
      if (!cause.ok() && of_culprit && teller == cause.details().peer) cause = error.status();
      if (!cause.ok()) break;
      const bool late = error.status().code() == Code::timeout && !of_store(error);
      cause = late ? Status(Code::timeout,
                            "rank " + std::to_string(peer) + " did not finish setting up group \"" +
                                group_ + "\" within " + format_seconds(deadline_.timeout()) +
                                "; see whether it runs, and its own log",
                            rank_, peer)
                   : attributed(error.status());
      break;
    }
    const char sign = results[peer].empty() ? kConsequence : results[peer][0];
    results[peer].erase(0, 1);
    if (sign == kSuccess) continue;
    const Status failure = unpacked(results[peer], peer);
    // It knows more, unless it holds this rank for the cause.
    const bool nearer =
        cause.ok() || (cause.details().peer == peer && failure.details().peer != rank_);
    if (sign == kOwnFailure || nearer) cause = failure;
    if (sign == kOwnFailure) break;
  }
  check(cause);
  return results;
}

Status Agreement::publish(const std::exception& failure) {
  const Status cause = attributed(status_in_set_up(failure));
  spare_ = Descriptor();
  if (!report_) report_.emplace(kReportBound);
  if (may_be_consequence(cause) || std::exchange(published_, true)) return cause;
  const Heedless heedless(heeds_watch_);
  try {
    store_.set(kFirstFailure, packed(cause), *report_);
  } catch (const Error&) {  // of the store
  }
  return cause;
}

void Agreement::leave_will() {
  const Status gone(Code::peer_failed, "its process ended during set-up; see its own log");
  try {
    store_.leave_will(kFirstFailure, packed(attributed(gone)), deadline_);
  } catch (const StoreError&) {  // the stages see whether the store works
  }
}

void Agreement::withdraw_will() {
  const Heedless heedless(heeds_watch_);
  try {
    store_.withdraw_will(kFirstFailure, report_.value_or(Deadline(kReportBound)));
  } catch (const Error&) {  // of the store, which set-up needs no more
  }
}

void Agreement::look() const {
  if (heeds_watch_) check(watch_());
}

std::string Agreement::get(const std::string& key, const Deadline& deadline) const {
  for (auto turn = kFirstTurn;; turn = std::min(2 * turn, kLongestTurn)) {
    const Deadline end(std::min(turn, deadline.left()));
    try {
      return store_.get(key, end);
    } catch (const Error& error) {
      const bool in_time = error.status().code() == Code::timeout && end.left() < kImprecision;
      if (watch_().ok() && (!in_time || deadline.passed())) throw;
    }
    if (const Status known = failure(Deadline(kLook)); !known.ok()) throw Error(known);
  }
}

Status Agreement::failure(const Deadline& deadline) const {
  const Status known = published(deadline);
  return known.ok() ? watch_() : known;
}

// A rank publishes its failure before its connections end.
Status Agreement::published(const Deadline& deadline) const {
  const Heedless heedless(heeds_watch_);
  try {
    return unpacked(store_.get(kFirstFailure, deadline), -1);
  } catch (const std::exception&) {  // of the store
    return {};
  }
}

Status Agreement::failure_in(const std::string& stage, int peer) const {
  return unpacked(get(stage + "/" + std::to_string(peer)).substr(1), peer);
}

// A failure that names no rank belongs to this rank.
Status Agreement::attributed(const Status& failure) const {
  if (failure.details().peer >= 0) return failure;
  Status::Details details = failure.details();
  details.message = "rank " + std::to_string(rank_) + " on " + host_name() +
                    " could not join group \"" + group_ + "\": " + details.message;
  details.rank = details.peer = rank_;
  return Status(details);
}

Status Agreement::unpacked(const std::string& failure, int publisher) const {
  int peer = -1;
  const char* const end = failure.data() + failure.size();
  const auto [stop, error] = std::from_chars(failure.data(), end, peer);
  const bool whole = error == std::errc() && stop != end && *stop == ' ' && peer < size_;
  if (!whole) return Status(Code::peer_failed, failure, rank_, publisher);
  return Status(Code::peer_failed, std::string(stop + 1, end), rank_, peer);
}

}  // namespace hetcomm
