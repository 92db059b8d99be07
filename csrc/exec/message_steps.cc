#include "exec/message_steps.h"

#include "codec/codec.h"

namespace hetcomm {
namespace {

// Whether the length of a message depends on the elements.
bool shrinks(const Range& range) { return range.codec && range.codec->lossless(); }

// The bytes of the longest message.
size_t longest(const Range& range) {
  return static_cast<size_t>(shrinks(range) ? range.plain_bytes() : range.message_bytes());
}

bool fits(const Range& range, size_t bytes) {
  return shrinks(range) ? bytes <= longest(range) : bytes == longest(range);
}

}  // namespace

MessageSteps::MessageSteps(const Plan& plan, const RunMemory& memory, Paths& paths,
                           const Operation& operation)
    : plan_(plan),
      memory_(memory),
      paths_(paths),
      operation_(operation),
      is_user_message_(is_message(plan.spec.collective)),
      hash_(is_user_message_ ? static_cast<uint64_t>(plan.spec.dtype) : hash(operation.call)),
      requests_(std::make_unique<Request[]>(plan.steps.size())),
      unposted_(plan.schedule.messages) {}

Status MessageSteps::post(int index) {
  const Step& step = plan_.steps[index];
  const uint64_t body = is_user_message_
                            ? Paths::message_body(operation_.user_tag, hash_)
                            : Paths::collective_body(operation_.call.sequence, step.tag, hash_);
  Request& request = requests_[index];
  request.done = false;
  --unposted_;
  Status status;
  // A receive needs the link, too. If the sender of a long message is gone, closing the link ends
  // the receive.
  Link* link = paths_.link(step.peer, status);
  if (!status.ok()) return status;
  in_flight_.push_back(index);
  const Range& range = step.message();
  std::byte* data = memory_.at(range);
  auto bytes = static_cast<size_t>(range.bytes());
  if (range.codec) {
    bytes = !shrinks(range)    ? longest(range)
            : step.kind->sends ? encoded_length(data)
                               : bytes - kEncodedHeader;
    data += kEncodedHeader;
  }
  const MemoryKind kind = memory_.kind_of(range);
  if (step.kind->sends) {
    link->send(paths_.send_tag(step.peer, body), data, bytes, kind, request);
  } else {
    paths_.transport(step.peer)->recv(paths_.recv_tag(step.peer, body),
                                      ~Paths::compared(is_user_message_), data, bytes, kind,
                                      request, link);
  }
  return Status();
}

Status MessageSteps::reap(size_t i) {
  const int index = in_flight_[i];
  in_flight_[i] = in_flight_.back();
  in_flight_.pop_back();
  const Step& step = plan_.steps[index];
  const Request& request = requests_[index];
  if (!step.kind->sends) paths_.consume(step.peer, request.bytes);
  if (!request.status.ok() || step.kind->sends) return request.status;
  const bool same_call =
      (request.tag & Paths::compared(is_user_message_)) ==
      (hash_ & (is_user_message_ ? Paths::kMessageDtype : Paths::kCollectiveHash));
  if (same_call && fits(step.target, request.bytes)) {
    if (shrinks(step.target)) set_encoded_length(memory_.at(step.target), request.bytes);
    return Status();
  }
  Status::Details details;
  details.code = Code::invalid_argument;
  details.message =
      "ranks disagree about the call: rank " + std::to_string(step.peer) + " sent " +
      std::to_string(request.bytes) + " bytes" +
      (same_call ? "" : " for another call, or after other calls") + ", rank " +
      std::to_string(plan_.rank) + " expected " + (shrinks(step.target) ? "at most " : "") +
      std::to_string(longest(step.target)) + " bytes for " + describe(plan_.spec, operation_) +
      "; make the same call with equal sizes, dtypes and codecs on every rank";
  return Status(details);
}

void MessageSteps::cancel() {
  for (int index : in_flight_) {
    if (requests_[index].done) continue;
    const Step& step = plan_.steps[index];
    Status ignored;
    if (!step.kind->sends) {
      paths_.transport(step.peer)->cancel(requests_[index]);
    } else if (Link* link = paths_.link(step.peer, ignored)) {
      link->close(false);  // nothing else makes the transport release the memory of a send
    }
  }
}

}  // namespace hetcomm
