// What a run does with the transport.

#include "exec/run.h"

namespace hetcomm {

// What the transport finds at a range.
MemoryKind Run::memory_of(const Range& range) const {
  return device_ && range.space != Space::staging ? device_->memory() : MemoryKind::host;
}

bool Run::find_sender(const Paths& paths) {
  if (!plan_for_) return true;
  const int sender = paths.sender(Paths::message_body(user_tag_, 0));
  if (sender < 0) return false;
  plan_ = plan_for_(sender);
  plan_for_ = nullptr;
  return true;
}

// Hands a send or recv to the transport.
void Run::post(int index) {
  const Step& step = plan_->steps[index];
  const bool message = is_message(plan_->spec.collective);
  const uint64_t body = message ? Paths::message_body(user_tag_, call_.dtype)
                                : Paths::collective_body(call_.sequence, step.tag, hash_);
  Request& request = requests_[index];
  request.done = false;
  --unposted_;
  Status status;
  // To receive needs one as well: to close it is what ends the receive of a long message whose
  // sender is gone.
  Link* link = paths_->link(step.peer, status);
  if (!status.ok()) return fail_message(index, status);
  in_flight_.push_back(index);
  network_ = true;
  const Range& range = step.kind == StepKind::send ? step.sources[0] : step.target;
  const size_t bytes = static_cast<size_t>(range.count) * element_;
  const MemoryKind memory = memory_of(range);
  if (trace_) [[unlikely]]
    trace_->begin(index);
  if (step.kind == StepKind::send) {
    link->send(paths_->send_tag(step.peer, body), address(range), bytes, memory, request);
  } else {
    paths_->transport(step.peer)->recv(paths_->recv_tag(step.peer, body), ~Paths::compared(message),
                                       address(range), bytes, memory, request);
  }
}

bool Run::post_in_order() {
  const std::vector<Step>& steps = plan_->steps;
  bool moved = false;
  for (; next_message_ < steps.size() && status_.ok(); ++next_message_) {
    if (!is_message(steps[next_message_].kind)) continue;
    if (waiting_[next_message_] != 0 || !may_post(static_cast<int>(next_message_))) break;
    post(static_cast<int>(next_message_));
    moved = true;
  }
  return moved;
}

Status Run::verify(int index, const Request& request) const {
  const Step& step = plan_->steps[index];
  if (!request.status.ok()) return request.status;
  if (step.kind != StepKind::recv) return Status();
  const bool message = is_message(plan_->spec.collective);
  const uint64_t wanted =
      message ? call_.dtype & Paths::kMessageHash : hash_ & Paths::kCollectiveHash;
  const uint64_t got = request.tag & Paths::compared(message);
  const size_t bytes = static_cast<size_t>(step.target.count) * element_;
  if (got == wanted && request.bytes == bytes) return Status();
  Status::Details details;
  details.code = Code::invalid_argument;
  details.message = "ranks disagree about the call: rank " + std::to_string(step.peer) + " sent " +
                    std::to_string(request.bytes) + " bytes" +
                    (got == wanted ? "" : " for another call, or after other calls") + ", rank " +
                    std::to_string(plan_->rank) + " expected " + std::to_string(bytes) +
                    " bytes for " + describe() +
                    "; make the same call with equal sizes and dtypes on every rank";
  return Status(details);
}

bool Run::poll_messages() {
  bool moved = false;
  for (size_t i = 0; i < in_flight_.size();) {
    const int index = in_flight_[i];
    if (!requests_[index].done) {
      ++i;
      continue;
    }
    in_flight_[i] = in_flight_.back();
    in_flight_.pop_back();
    moved = true;
    const Step& step = plan_->steps[index];
    if (step.kind == StepKind::recv) paths_->take(step.peer, requests_[index].bytes);
    if (!status_.ok() || !given_up_.ok()) continue;
    const Status status = verify(index, requests_[index]);
    if (status.ok()) {
      complete(index);
    } else {
      fail_message(index, status);
    }
  }
  return moved;
}

// A link that ends is a consequence: its peer died or left, or another operation has failed. News
// of the cause may be on its way.
void Run::fail_message(int index, const Status& status) {
  const bool cause = status.code() == Code::invalid_argument || status.code() == Code::vendor;
  cause ? fail(at_step(index, status)) : give_up(at_step(index, status));
}

}  // namespace hetcomm
