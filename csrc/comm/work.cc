#include "comm/work.h"

#include "base/config.h"

namespace hetcomm {

const Status& Work::status() const {
  if (run_->done()) return run_->status();
  static const auto* inherited = new Status(
      Code::invalid_argument,
      "this operation was under way in the process that forked this one, and ends there; wait for "
      "it before fork(), or there");
  return *inherited;
}

void Work::when_done(std::function<void(const Status&)> listener) const {
  if (run_->inherited()) return listener(status());
  run_->completion().when_done(std::move(listener), run_->status());
}

void Work::keep_alive(std::shared_ptr<void> memory) const {
  if (!run_->inherited()) run_->completion().keep_alive(std::move(memory));
}

void Work::note_caller(const std::string& line) const {
  if (run_->inherited()) return;
  run_->completion().note_caller(line);
  executor_->wake_progress_thread();  // a monitor may want to tell the line
}

bool Work::done_within(std::chrono::nanoseconds time) const {
  return done() || executor_->wait(*run_, Deadline(time));
}

Status Work::timeout_error(std::chrono::nanoseconds after) const {
  return Status(Code::timeout, describe() + " is not complete after " + format_seconds(after) +
                                   ", " + where() + "; it goes on");
}

bool Work::in_streams() const {
  if (run_->inherited()) return true;
  const auto held = executor_->lock_within(kLockBound);
  return held && run_->in_streams();
}

bool Work::in_streams_within(std::chrono::nanoseconds time) const {
  return run_->inherited() || executor_->wait_in_streams(*run_, Deadline(time));
}

Status Work::check_not_captured(Stream stream) const {
  if (run_->inherited()) return status();
  const auto held = executor_->lock();
  return run_->check_not_captured(stream);
}

Status Work::block_stream(Stream stream) const {
  if (run_->inherited()) return status();
  const auto held = executor_->lock();
  return run_->block_stream(stream);
}

// Under the lock, because a receive from any rank changes its description with its sender.
std::string Work::describe() const {
  if (run_->inherited()) return "an operation of another process";
  const auto held = executor_->lock_within(kLockBound);
  return held ? run_->describe() : "an operation";
}

std::string Work::where() const {
  if (run_->inherited()) return "another process";
  const auto held = executor_->lock_within(kLockBound);
  return held ? run_->where() : "while a thread stands still inside a driver or UCX";
}

}  // namespace hetcomm
