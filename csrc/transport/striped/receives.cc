#include "transport/striped/receives.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "transport/striped/striped.h"

namespace hetcomm {
namespace {

// Tells the parts of lost stripes apart. Of all transports of this process, because they share
// UCX's.
uint64_t next_answer() {
  static std::atomic<uint64_t> last{0};
  return kTransportTags | (++last & ~kTransportTags);
}

}  // namespace

StripeReceives::StripeReceives(std::vector<Transport*> transports, std::vector<int64_t> bandwidths)
    : transports_(std::move(transports)),
      bandwidths_(std::move(bandwidths)),
      all_(transports_.size()) {
  std::iota(all_.begin(), all_.end(), size_t{0});
}

std::byte* StripeReceives::Received::memory_of(size_t part) const {
  std::byte* into = data;
  for (size_t i = 0; i < part; ++i) into += parts[i].bytes;
  return into;
}

bool StripeReceives::Received::done() const {
  return std::all_of(parts.begin(), parts.end(), [this](const Part& part) {
    return cancelled ? part.request.done : settled(part);
  });
}

void StripeReceives::post(uint64_t tag, uint64_t mask, void* data, size_t bytes, MemoryKind memory,
                          Request& request, std::shared_ptr<StripeLinks> from) {
  request = Request();
  request.done = false;
  Received& message = received_.emplace_back();
  message.whole = &request;
  message.tag = tag;
  message.mask = mask;
  message.data = static_cast<std::byte*>(data);
  message.bytes = bytes;
  message.memory = memory;
  message.from = std::move(from);
  if (message.from) {
    auto& owed = message.from->owed();
    const auto found = std::find_if(owed.begin(), owed.end(), [&](const auto& sent) {
      return sent.matches(tag, mask & ~kPartTag);
    });
    if (found != owed.end()) {
      const bool divided = (found->tag & kPartTag) != 0;
      post(message, divided ? found->layout : Layout{message.from->first()});
      owed.erase(found);
      ask(message);
      return complete_at_once(message);
    }
  }
  post(message, message.from ? message.from->incoming() : all_);
  complete_at_once(message);
}

// The newest message may have arrived already.
void StripeReceives::complete_at_once(const Received& message) {
  if (message.divided() || !message.done() || !comes_next(message)) return;
  complete(message);
  received_.pop_back();
}

void StripeReceives::post(Received& message, const Layout& over) {
  const std::vector<size_t> sizes = divide(message.bytes, bandwidths_, over);
  message.parts.clear();
  for (size_t part = 0; part < sizes.size(); ++part) {
    message.parts.push_back({.stripe = over[part], .carrier = over[part], .bytes = sizes[part]});
  }
  if (message.divided()) ++divided_;
  // The requests stay in place from here on.
  for (size_t part = 0; part < sizes.size(); ++part) post_part(message, part);
}

// The first receive has room for the whole message, which may not be divided if the ranks disagree.
// After a loss, a part of a later message may arrive before an earlier message that comes again.
// So the receive takes no part in place of a whole message any more.
void StripeReceives::post_part(Received& message, size_t part) {
  Part& own = message.parts[part];
  own.waits = message.from && !message.from->agreed();
  if (own.waits || message.lost(own)) {
    own.request = Request();
    own.request.status = Status(Code::aborted, "receive: the stripe is lost");
    return;
  }
  const bool exact = message.from && message.from->any_lost();
  const uint64_t mask = exact ? message.mask | kPartTag : message.mask;
  transports_[own.carrier]->recv(message.sent_tag(), mask, message.memory_of(part),
                                 part == 0 ? message.bytes : own.bytes, message.memory, own.request,
                                 nullptr);
}

// No part of the message has been sent.
void StripeReceives::withdraw(Received& message) {
  for (Part& part : message.parts) abandon(message, part);
  if (message.divided()) --divided_;
}

void StripeReceives::abandon(const Received& message, Part& part) {
  Transport& carrier = *transports_[part.carrier];
  carrier.cancel(part.request);
  if (part.request.done) return;
  if (!message.from->silent(part.carrier)) {
    throw Error(Code::transport,
                "a message over several NICs: expected a closed link before its receive is given "
                "up; got an open one, which may still write into the buffer; report this");
  }
  carrier.abandon(part.request);
}

void StripeReceives::agree(const std::shared_ptr<StripeLinks>& from) {
  std::vector<StripeLinks::Announced> sent = from->begin_agreement();
  if (!from->agreement_due()) return;  // the link has failed
  for (const StripeLinks::Announced& message : sent) {
    for (size_t stripe = 0; stripe < transports_.size(); ++stripe) {
      if (from->lost(stripe)) transports_[stripe]->discard(message.tag);
    }
  }
  for (Received& message : received_) {
    if (message.from != from || message.cancelled) continue;
    const auto found = std::find_if(sent.begin(), sent.end(), [&](const auto& one) {
      return one.matches(message.sent_tag(), message.mask | kPartTag);
    });
    if (found != sent.end()) {
      sent.erase(found);
      for (Part& part : message.parts) {
        if (message.lost(part)) abandon(message, part);
      }
      ask(message);
    } else if (std::none_of(message.parts.begin(), message.parts.end(), [](const Part& part) {
                 return part.request.done && part.request.status.ok();
               })) {
      withdraw(message);
      post(message, from->incoming());
    }
  }
  from->owed() = std::move(sent);
  from->end_agreement();
}

void StripeReceives::ask(Received& message) {
  if (!message.from->agreed()) return;  // comes later
  for (size_t part = 0; part < message.parts.size(); ++part) {
    Part& own = message.parts[part];
    if (message.lost(own)) {
      if (!message.settled(own)) ask(message, part);
    } else if (own.waits) {
      post_part(message, part);
    }
  }
}

// A message that is not divided comes again by itself.
void StripeReceives::ask(Received& message, size_t part) {
  Part& own = message.parts[part];
  own.carrier = message.from->first();
  if (!message.divided()) return post_part(message, part);
  const uint64_t answer = next_answer();
  own.asked = true;
  own.waits = false;
  transports_[own.carrier]->recv(answer, ~uint64_t{0}, message.memory_of(part), own.bytes,
                                 message.memory, own.request, nullptr);
  message.from->ask(message.sent_tag(), place_among_unconfirmed(message), own.stripe, own.carrier,
                    answer);
}

size_t StripeReceives::place_among_unconfirmed(const Received& message) const {
  size_t place = 0;
  for (const Received& earlier : received_) {
    if (&earlier == &message) break;
    if (message.follows(earlier) && !earlier.cancelled) ++place;
  }
  return place;
}

void StripeReceives::cancel(Request& request) {
  for (Received& message : received_) {
    if (message.whole == &request) return cancel_parts(message);
  }
}

void StripeReceives::cancel_parts(Received& message) {
  if (std::exchange(message.cancelled, true)) return;
  for (Part& part : message.parts) {
    if (!part.request.done) transports_[part.carrier]->cancel(part.request);
  }
}

void StripeReceives::cancel_hopeless(Received& message) {
  if (!message.divided()) return;
  for (const Part& part : message.parts) {
    if (!part.request.done || part.waits || message.lost(part)) continue;
    // If a part is too long, the other parts still arrive, and the sender waits for their receives.
    const bool failed =
        !part.request.status.ok() && part.request.status.code() != Code::invalid_argument;
    const bool whole = !part.asked && (part.request.tag & kPartTag) == 0;
    if (failed || whole) return cancel_parts(message);
  }
}

// The sender can no longer be asked.
void StripeReceives::give_up_unreachable(Received& message) {
  if (!message.from || message.cancelled || !message.from->unreachable()) return;
  const bool waits = std::any_of(message.parts.begin(), message.parts.end(), [&](const Part& part) {
    return part.waits || (part.asked && !part.request.done) ||
           (message.lost(part) && !message.settled(part));
  });
  if (!waits) return;
  message.failure = Status(Code::transport,
                           "receive: the connection to the peer failed before the whole message "
                           "came");
  cancel_parts(message);
}

// The sender tells messages of one tag apart by their order, so they complete in this order.
bool StripeReceives::comes_next(const Received& message) const {
  for (const Received& earlier : received_) {
    if (&earlier == &message) break;
    if (message.from && message.follows(earlier)) return false;
  }
  return true;
}

bool StripeReceives::collect() {
  bool moved = false;
  for (auto message = received_.begin(); message != received_.end();) {
    cancel_hopeless(*message);
    give_up_unreachable(*message);
    if (!message->done() || !comes_next(*message)) {
      ++message;
      continue;
    }
    complete(*message);
    if (message->divided()) --divided_;
    message = received_.erase(message);
    moved = true;
  }
  return moved;
}

bool StripeReceives::is_expected(const Received& message, const Part& part) {
  if (!part.request.status.ok() || part.request.bytes != part.bytes) return false;
  return part.asked || part.request.tag == message.sent_tag();
}

void StripeReceives::complete(const Received& message) const {
  if (message.divided()) return complete_divided(message);
  const Request& part = message.parts[0].request;
  Request& whole = *message.whole;
  whole.status = message.failure.ok() ? part.status : message.failure;
  whole.bytes = part.bytes;
  whole.tag = part.tag;
  const bool took = part.status.ok() || part.status.code() == Code::invalid_argument;
  if (took && message.from && (part.tag & kPartTag) == 0)
    message.from->confirm(part.tag, part.bytes);
  whole.done = true;
}

void StripeReceives::complete_divided(const Received& message) const {
  Request& whole = *message.whole;
  const Request* cause = nullptr;  // the first failure, before parts that it cancelled
  for (const Part& part : message.parts) {
    if (is_expected(message, part)) continue;
    const bool consequence = cause && cause->status.code() == Code::aborted;
    if (cause == nullptr || consequence) cause = &part.request;
  }
  if (cause == nullptr) {
    whole.bytes = message.bytes;
    whole.tag = message.tag;
    if (message.from) message.from->confirm(message.sent_tag(), message.bytes);
  } else if (!message.failure.ok()) {
    whole.status = message.failure;
  } else if (!cause->status.ok() && cause->status.code() != Code::invalid_argument) {
    whole.status = cause->status;
  } else if (cause->status.ok() && cause->tag != message.sent_tag()) {
    whole.bytes = cause->bytes;
    whole.tag = cause->tag;
  } else {
    whole.tag = cause->tag & ~kPartTag;
    whole.status = Status(Code::invalid_argument,
                          "receive: expected a message of " + std::to_string(message.bytes) +
                              " bytes; got one of another size; both ranks must agree on the size");
  }
  whole.done = true;
}

}  // namespace hetcomm
