#include "bootstrap/agreement.h"

#include "base/config.h"

namespace hetcomm {
namespace {

// Under it a rank that fails by itself says so at once; in front are its number and a space.
const char* const kFailed = "failed";

// What begins a rank's answer in a stage.
constexpr char kDone = '+', kFailedByItself = '-', kWaitedInVain = '~';

// Others' failures show like this, so one of theirs may be the cause.
bool waited_in_vain(const Status& status) {
  return status.code() == Code::timeout || status.code() == Code::peer_failed ||
         status.code() == Code::transport;
}

}  // namespace

Agreement::Agreement(Store& store, int rank, int size, std::string group, const Deadline& deadline)
    : store_(store), rank_(rank), size_(size), group_(std::move(group)), deadline_(deadline) {}

std::vector<std::string> Agreement::stage(const std::string& name,
                                          const std::function<std::string()>& part) {
  std::vector<std::string> given(size_);
  Status cause;
  try {
    given[rank_] = part();
  } catch (const Error& error) {
    cause = named(error.status());
  } catch (const std::exception& error) {
    cause = named(Status(Code::transport, std::string("set-up: ") + error.what()));
  }
  const bool mine = !cause.ok();
  try {
    char sign = kDone;
    if (mine) sign = waited_in_vain(cause) ? kWaitedInVain : kFailedByItself;
    if (sign == kFailedByItself) {
      store_.set(kFailed, std::to_string(cause.details().peer) + " " + cause.details().message);
    }
    store_.set(name + "/" + std::to_string(rank_),
               sign + (mine ? cause.details().message : given[rank_]));
  } catch (const Error& error) {
    if (!mine) cause = named(error.status());
  }
  for (int peer = 0; peer < size_ && (cause.ok() || waited_in_vain(cause)); ++peer) {
    if (peer == rank_) continue;
    if (mine && deadline_.passed()) break;
    try {
      given[peer] = store_.get(name + "/" + std::to_string(peer), deadline_);
    } catch (const Error& error) {
      if (mine) break;
      cause = error.status().code() == Code::timeout
                  ? Status(Code::timeout,
                           "rank " + std::to_string(peer) + " did not finish setting up group \"" +
                               group_ + "\" within " + format_seconds(deadline_.timeout()) +
                               "; see whether it runs, and its own log",
                           rank_, peer)
                  : named(error.status());
      break;
    }
    const char sign = given[peer].empty() ? kWaitedInVain : given[peer][0];
    given[peer].erase(0, 1);
    if (sign == kFailedByItself || (sign == kWaitedInVain && cause.ok())) {
      cause = told(peer, given[peer]);
    }
    if (sign == kFailedByItself) break;
  }
  check(cause);
  return given;
}

Status Agreement::failure(const Deadline& deadline) const {
  try {
    const std::string found = store_.get(kFailed, deadline);
    const size_t space = found.find(' ');
    return told(std::stoi(found), found.substr(space + 1));
  } catch (const Error&) {
    return {};
  }
}

Status Agreement::reason(const std::string& stage, int peer) const {
  return told(peer, store_.get(stage + "/" + std::to_string(peer), deadline_).substr(1));
}

// The failure of this rank as everybody is told it, unless it says already whom it concerns.
Status Agreement::named(const Status& failure) const {
  if (failure.details().peer >= 0) return failure;
  Status::Details details = failure.details();
  details.message = "rank " + std::to_string(rank_) + " on " + host_name() +
                    " could not join group \"" + group_ + "\": " + details.message;
  details.rank = details.peer = rank_;
  return Status(details);
}

Status Agreement::told(int peer, const std::string& sentence) const {
  return Status(Code::peer_failed, sentence, rank_, peer);
}

}  // namespace hetcomm
