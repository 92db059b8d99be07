#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace hetcomm {

enum class Code { ok, invalid_argument, transport, vendor, timeout, aborted, peer_failed };

const char* name(Code code);

// The outcome of an operation: ok, which is cheap, or an error. A message says what was expected,
// what came, and what to do. Immutable after construction and safe to copy between threads.
class Status {
 public:
  struct Details {
    Code code;
    std::string message;
    int rank = -1;                 // noticed the error; -1 if unknown
    int peer = -1;                 // is the cause; -1 if no rank is
    std::string op;                // the operation, such as "all_reduce #7"
    int step = -1;                 // the plan step at which it happened
    std::vector<int> failed = {};  // in order; the peer alone if empty, see failed_ranks()
  };

  Status() = default;
  Status(Code code, std::string message, int rank = -1, int peer = -1)
      : details_(std::make_shared<Details>(Details{code, std::move(message), rank, peer})) {}
  explicit Status(Details details) : details_(std::make_shared<Details>(std::move(details))) {}

  bool ok() const { return details_ == nullptr; }
  explicit operator bool() const { return ok(); }
  Code code() const { return ok() ? Code::ok : details_->code; }
  const Details& details() const { return *details_; }  // only when !ok()
  // The ranks that do not answer any more, in order: the same on every rank of the group.
  std::vector<int> failed_ranks() const;
  // One line: message, then rank, peer, operation and step where known.
  std::string text() const;

 private:
  std::shared_ptr<const Details> details_;
};

// Thrown by set-up and validation only; the data path returns Status.
class Error : public std::runtime_error {
 public:
  explicit Error(Status status) : std::runtime_error(status.text()), status_(std::move(status)) {}
  Error(Code code, std::string message) : Error(Status(code, std::move(message))) {}
  const Status& status() const { return status_; }

 private:
  Status status_;
};

// An exception as a status, for threads and callbacks that no exception may leave.
Status status_of(const std::exception& error) noexcept;
// The same for any exception, within `catch (...)`. The end of a thread, as by pthread_exit(),
// goes on.
Status status_of_caught();

inline void check(const Status& status) {
  if (!status.ok()) throw Error(status);
}

}  // namespace hetcomm
