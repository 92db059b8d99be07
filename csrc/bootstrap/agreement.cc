#include "bootstrap/agreement.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <charconv>

#include "base/config.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

const char* const kFirstFailure = "failed";  // its key
// A rank that waits for another rank looks after such turns whether a third rank has failed. Ranks
// that fail together publish their failures within the first turn.
constexpr std::chrono::nanoseconds kFirstTurn = 1s, kLongestTurn = 16s;
constexpr auto kLook = 100ms;        // for an answer of the store
constexpr auto kImprecision = 20ms;  // of a store's timeout

// The first character of a published result: success, a failure of this rank by itself, or a
// failure that may be the consequence of another rank's failure. A failure follows as packed().
constexpr char kSuccess = '+', kOwnFailure = '-', kConsequence = '~';

bool may_be_consequence(const Status& status) {
  return status.code() == Code::timeout || status.code() == Code::peer_failed ||
         status.code() == Code::transport;
}

// The rank that is the cause, and the message.
std::string packed(const Status& failure) {
  return std::to_string(failure.details().peer) + " " + failure.details().message;
}

}  // namespace

Agreement::Agreement(Store& store, int rank, int size, std::string group, const Deadline& deadline)
    : store_(store),
      rank_(rank),
      size_(size),
      group_(std::move(group)),
      deadline_(deadline),
      spare_(eventfd(0, EFD_CLOEXEC)) {}

std::vector<std::string> Agreement::stage(const std::string& name,
                                          const std::function<std::string()>& part) {
  std::vector<std::string> results(size_);
  Status cause;
  try {
    results[rank_] = part();
  } catch (const Error& error) {
    cause = attributed(error.status());
  } catch (const std::exception& error) {
    cause = attributed(Status(Code::transport, std::string("set-up: ") + error.what()));
  }
  const bool failed = !cause.ok();
  if (failed) spare_ = Descriptor();
  try {
    char sign = kSuccess;
    if (failed) sign = may_be_consequence(cause) ? kConsequence : kOwnFailure;
    if (sign == kOwnFailure) {
      store_.set(kFirstFailure, packed(cause));
    }
    store_.set(name + "/" + std::to_string(rank_),
               sign + (failed ? packed(cause) : results[rank_]));
  } catch (const Error& error) {
    if (!failed) cause = attributed(error.status());
  }
  for (int peer = 0; peer < size_ && (cause.ok() || may_be_consequence(cause)); ++peer) {
    if (peer == rank_) continue;
    if (failed && deadline_.passed()) break;
    try {
      results[peer] = get(name + "/" + std::to_string(peer));
    } catch (const Error& error) {
      if (failed) break;
      cause = error.status().code() == Code::timeout
                  ? Status(Code::timeout,
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
    // A rank that another rank holds for the cause knows more, unless it holds this rank for it.
    const bool nearer =
        cause.ok() || (cause.details().peer == peer && failure.details().peer != rank_);
    if (sign == kOwnFailure || nearer) cause = failure;
    if (sign == kOwnFailure) break;
  }
  check(cause);
  return results;
}

std::string Agreement::get(const std::string& key) const {
  for (auto turn = kFirstTurn;; turn = std::min(2 * turn, kLongestTurn)) {
    const Deadline end(std::min(turn, deadline_.left()));
    try {
      return store_.get(key, end);
    } catch (const Error& error) {
      const bool in_time = error.status().code() == Code::timeout && end.left() < kImprecision;
      if (!in_time || deadline_.passed()) throw;
    }
    if (const Status known = failure(Deadline(kLook)); !known.ok()) throw Error(known);
  }
}

Status Agreement::failure(const Deadline& deadline) const {
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
