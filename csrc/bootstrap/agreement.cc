#include "bootstrap/agreement.h"

#include "base/config.h"

namespace hetcomm {
namespace {

// The key of the first failure: the number of the rank, a space and the message.
const char* const kFirstFailure = "failed";

// The first character of a published result: success, a failure of this rank by itself, or a
// failure that may be the consequence of another rank's failure.
constexpr char kSuccess = '+', kOwnFailure = '-', kConsequence = '~';

bool may_be_consequence(const Status& status) {
  return status.code() == Code::timeout || status.code() == Code::peer_failed ||
         status.code() == Code::transport;
}

}  // namespace

Agreement::Agreement(Store& store, int rank, int size, std::string group, const Deadline& deadline)
    : store_(store), rank_(rank), size_(size), group_(std::move(group)), deadline_(deadline) {}

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
  try {
    char sign = kSuccess;
    if (failed) sign = may_be_consequence(cause) ? kConsequence : kOwnFailure;
    if (sign == kOwnFailure) {
      store_.set(kFirstFailure,
                 std::to_string(cause.details().peer) + " " + cause.details().message);
    }
    store_.set(name + "/" + std::to_string(rank_),
               sign + (failed ? cause.details().message : results[rank_]));
  } catch (const Error& error) {
    if (!failed) cause = attributed(error.status());
  }
  for (int peer = 0; peer < size_ && (cause.ok() || may_be_consequence(cause)); ++peer) {
    if (peer == rank_) continue;
    if (failed && deadline_.passed()) break;
    try {
      results[peer] = store_.get(name + "/" + std::to_string(peer), deadline_);
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
    if (sign == kOwnFailure || (sign == kConsequence && cause.ok())) {
      cause = failure_of(peer, results[peer]);
    }
    if (sign == kOwnFailure) break;
  }
  check(cause);
  return results;
}

Status Agreement::failure(const Deadline& deadline) const {
  try {
    const std::string found = store_.get(kFirstFailure, deadline);
    const size_t space = found.find(' ');
    return failure_of(std::stoi(found), found.substr(space + 1));
  } catch (const std::exception&) {  // of the store, or no number
    return {};
  }
}

Status Agreement::failure_in(const std::string& stage, int peer) const {
  return failure_of(peer, store_.get(stage + "/" + std::to_string(peer), deadline_).substr(1));
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

Status Agreement::failure_of(int peer, const std::string& message) const {
  return Status(Code::peer_failed, message, rank_, peer);
}

}  // namespace hetcomm
