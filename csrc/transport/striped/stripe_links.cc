#include "transport/striped/stripe_links.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hetcomm {
namespace {

// A message that the peer has not confirmed is copied after this time without a sign of the peer,
// so that its sender can go on: the peer has not posted a receive yet. Notes queue behind the
// peer's own data, which is a sign of the peer, too. All_reduce of 8 MiB over 1 and 2 Gbit/s, two
// busy cores: 24 ms without confirmations, 30 ms with copies 20 ms after posting, 25 ms without
// copies.
constexpr auto kPatience = std::chrono::milliseconds(100);
constexpr size_t kMostSpare = 16;  // memory of copies of short messages
// Bytes of the copies for one peer. A further message waits for its confirmation. As large as the
// window of UCX's transport.
constexpr size_t kMostCopied = 256 << 20;
constexpr size_t kOverhead = 512;  // of a copy

}  // namespace

StripeLinks::StripeLinks(std::vector<std::unique_ptr<Link>> links, std::vector<int64_t> bandwidths)
    : links_(std::move(links)),
      bandwidths_(std::move(bandwidths)),
      lost_(links_.size()),
      turns_(links_.size()),
      outgoing_(stripes_left()),
      incoming_(outgoing_) {}

bool StripeLinks::Sent::read() const {
  const auto done = [](const Part& part) { return part.request.done; };
  return !parts.empty() && std::all_of(parts.begin(), parts.end(), done) &&
         std::all_of(again.begin(), again.end(), done);
}

Layout StripeLinks::Sent::layout() const {
  Layout stripes;
  for (const Part& part : parts) stripes.push_back(part.stripe);
  return stripes;
}

size_t StripeLinks::left() const { return std::count(lost_.begin(), lost_.end(), false); }

Layout StripeLinks::stripes(bool lost) const {
  Layout stripes;
  for (size_t stripe = 0; stripe < lost_.size(); ++stripe) {
    if (lost_[stripe] == lost) stripes.push_back(stripe);
  }
  return stripes;
}

void StripeLinks::send(uint64_t tag, const void* data, size_t bytes, MemoryKind memory,
                       Request& request) {
  request = Request();
  request.status = failure_;
  if (!failure_.ok()) return;
  if (closing_) return links_[first_]->send(tag, data, bytes, memory, request);  // an error
  request.done = false;
  const auto message = sent_.emplace(sent_.end());
  message->number = ++numbers_;
  message->whole = &request;
  message->tag = tag;
  message->data = static_cast<const std::byte*>(data);
  message->bytes = bytes;
  message->memory = memory;
  if (holding_) return held_.push_back(message);
  post(message);
}

void StripeLinks::post(Messages::iterator message) {
  const std::vector<size_t> sizes = divide(message->bytes, bandwidths_, outgoing_);
  const bool divided = sizes.size() > 1;
  if (divided) message->tag |= kPartTag;
  unconfirmed_.emplace(std::pair(message->tag, message->number), message);
  const std::byte* from = message->data;
  for (size_t part = 0; part < sizes.size(); ++part) {
    message->parts.push_back({outgoing_[part], sizes[part], {}});
  }
  for (Sent::Part& part : message->parts) {
    links_[part.stripe]->send(message->tag, from, part.bytes, message->memory, part.request);
    from += part.bytes;
  }
  if (divided || !message->read() || !message->parts[0].request.status.ok()) return;
  if (advance(*message, Clock::now())) keep(message);
}

void StripeLinks::consume(size_t bytes) {
  const std::vector<size_t> sizes = divide(bytes, bandwidths_, incoming_);
  for (size_t part = 0; part < sizes.size(); ++part) links_[incoming_[part]]->consume(sizes[part]);
}

void StripeLinks::close(bool flush) {
  if (flush && !closing_ && !std::exchange(leaves_, true)) {
    tell_confirmations();
    tell({.kind = leaving});
  }
  flushing_ = flush && !closing_ && failure_.ok() && may_be_asked();
  if (flushing_) return;
  closing_ = true;
  holding_ = false;
  due_.reset();
  held_.clear();
  unconfirmed_.clear();
  kept_.clear();
  for (auto& link : links_) link->close(flush);
}

bool StripeLinks::closed() const {
  return !flushing_ &&
         std::all_of(links_.begin(), links_.end(), [](auto& link) { return link->closed(); });
}

// The peer may yet ask for a part of a message.
bool StripeLinks::may_be_asked() const {
  if (peer_leaves_ || unreachable()) return false;
  return holding_ ||
         std::any_of(sent_.begin(), sent_.end(),
                     [](const Sent& one) {
                       return !one.confirmed && (one.divided() || one.whole != nullptr);
                     }) ||
         std::any_of(kept_.begin(), kept_.end(), [](const Sent& one) { return one.divided(); });
}

// Only its confirmation is missing.
void StripeLinks::keep(Messages::iterator message) {
  message->kept = true;
  kept_.splice(kept_.end(), sent_, message);
}

// A failed part costs its stripe, or the link if no other stripe is left.
void StripeLinks::look_at_parts(const Sent& message) {
  const auto look = [this](const Sent::Part& part) {
    if (!part.request.done || part.request.status.ok() || lost_[part.stripe] || closing_) return;
    if (left() == 1) return fail(part.request.status);
    lose({part.stripe});
  };
  for (const Sent::Part& part : message.parts) look(part);
  for (const Sent::Part& part : message.again) look(part);
}

void StripeLinks::fail(const Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  close(false);
}

bool StripeLinks::busy() const {
  if (closing_) return !sent_.empty() || !closed();
  if (!sent_.empty() || due_ || holding_ || flushing_) return true;
  for (size_t stripe = 0; stripe < lost_.size(); ++stripe) {
    if (lost_[stripe] && !silent(stripe)) return true;
  }
  return false;
}

bool StripeLinks::progress(Clock::time_point now) {
  bool moved = false;
  for (size_t stripe = 0; stripe < lost_.size(); ++stripe) {
    if (!lost_[stripe] || !links_[stripe]->closed() || silent(stripe)) continue;
    ++turns_[stripe];
    moved = true;  // no event announces the next turn
  }
  lose_failed();
  for (auto message = sent_.begin(); message != sent_.end(); ++message) look_at_parts(*message);
  for (auto message = sent_.begin(); message != sent_.end();) {
    moved |= advance(*message, now);
    const auto next = std::next(message);
    const bool held = message->parts.empty();
    const bool complete = message->whole == nullptr && (message->read() || (closing_ && held));
    if (complete && (message->confirmed || closing_)) {
      drop_copy(*message);
      unconfirmed_.erase({message->tag, message->number});
      sent_.erase(message);
    } else if (complete && !holding_) {
      keep(message);
    }
    message = next;
  }
  if (flushing_ && !may_be_asked()) close(true);
  return moved;
}

bool StripeLinks::copy(Sent& message) {
  const size_t bytes = message.bytes;
  if (message.memory != MemoryKind::host || copied_ + bytes + kOverhead > kMostCopied) return false;
  const bool spare = message.divided() && bytes <= kShort;
  if (spare && !spare_.empty()) {
    message.copy = std::move(spare_.back());
    spare_.pop_back();
  } else {
    message.copy = std::make_unique_for_overwrite<std::byte[]>(spare ? kShort : bytes);
  }
  if (bytes > 0) std::memcpy(message.copy.get(), message.data, bytes);
  message.data = message.copy.get();
  copied_ += bytes + kOverhead;
  return true;
}

void StripeLinks::drop_copy(Sent& message) {
  if (!message.copy) return;
  copied_ -= message.bytes + kOverhead;
  if (message.divided() && message.bytes <= kShort && spare_.size() < kMostSpare) {
    spare_.push_back(std::move(message.copy));
  }
}

// True if the message is complete for its sender.
bool StripeLinks::advance(Sent& message, Clock::time_point now) {
  const bool given_up = closing_ && message.parts.empty();
  if (message.whole == nullptr || !(given_up || message.read())) return false;
  if (!message.confirmed && !closing_) {
    if (message.posted == Clock::time_point()) message.posted = now;
    const bool late = now - std::max(message.posted, heard_) >= kPatience;
    if (!late && message.bytes > kShort) return false;
    if (!copy(message)) {
      if (!std::exchange(hurried_, true)) tell({.kind = hurry});
      return false;
    }
  }
  Request& whole = *std::exchange(message.whole, nullptr);
  if (!message.confirmed) {
    whole.status = failure_;
    for (const Sent::Part& part : message.parts) {
      if (closing_ && whole.status.ok()) whole.status = part.request.status;
    }
    if (message.parts.empty() && whole.status.ok()) {
      whole.status = Status(Code::aborted, "send: the link was closed here");
    }
  }
  whole.bytes = 0;
  whole.done = true;
  return true;
}

}  // namespace hetcomm
