#include "transport/striped/stripe_links.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "transport/striped/striped.h"

namespace hetcomm {
namespace {

enum Kind : uint64_t { confirmed, wanted, stripe_lost, leaving };  // of notes

// A message that the peer has not confirmed is copied after this time without a sign of the peer,
// so that its sender can go on: the peer has not posted a receive yet. Notes queue behind the
// peer's own data, which is a sign of the peer, too. All_reduce of 8 MiB over 1 and 2 Gbit/s, two
// busy cores: 24 ms without confirmations, 30 ms with copies 20 ms after posting, 25 ms without
// copies.
constexpr auto kPatience = std::chrono::milliseconds(100);
// A message of so many bytes is copied at once: its confirmation takes longer than the copy.
// Ping-pong of 64 KiB there: 0.18 ms without confirmations, 0.69 ms when the sender awaits each.
constexpr size_t kShort = 256 << 10;
constexpr size_t kMostSpare = 16;  // memory of copies of short messages
// Bytes of the copies for one peer. A further message waits for its confirmation. As large as the
// window of UCX's transport.
constexpr size_t kMostCopied = 256 << 20;

}  // namespace

size_t StripeLinks::Sent::bytes() const {
  return std::accumulate(sizes.begin(), sizes.end(), size_t{0});
}

bool StripeLinks::Sent::read() const {
  const auto done = [](const Request& request) { return request.done; };
  return std::all_of(parts.begin(), parts.end(), done) &&
         std::all_of(again.begin(), again.end(), done);
}

bool StripeLinks::any_lost() const {
  return std::find(lost_.begin(), lost_.end(), true) != lost_.end();
}

void StripeLinks::send(uint64_t tag, const void* data, const std::vector<size_t>& sizes,
                       MemoryKind memory, Request& request) {
  request = Request();
  request.status = failure_;
  if (!failure_.ok()) return;
  const size_t left = std::count(lost_.begin(), lost_.end(), false);
  const auto* from = static_cast<const std::byte*>(data);
  if (sizes.size() == 1 || left == 1) {
    const size_t bytes = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
    return links_.front()->send(tag, data, bytes, memory, request);
  }
  request.done = false;
  Sent& message = sent_.emplace_back();
  message.whole = &request;
  message.tag = tag | kPartTag;
  message.data = from;
  message.memory = memory;
  message.sizes = sizes;
  message.parts.resize(sizes.size());
  for (size_t stripe = 0; stripe < sizes.size(); from += sizes[stripe], ++stripe) {
    if (lost_[stripe]) continue;  // the peer asks for it
    links_[stripe]->send(message.tag, from, sizes[stripe], memory, message.parts[stripe]);
  }
}

void StripeLinks::consume(size_t bytes) {
  const std::vector<size_t> sizes = divide(bytes, bandwidths_);
  for (size_t stripe = 0; stripe < sizes.size(); ++stripe) {
    links_[lost_[stripe] ? 0 : stripe]->consume(sizes[stripe]);
  }
}

void StripeLinks::lose(size_t stripe) {
  if (stripe == 0 || stripe >= lost_.size() || lost_[stripe] || closing_) return;
  lost_[stripe] = true;
  links_[stripe]->close(false);
  links_[0]->tell({.kind = stripe_lost, .stripe = stripe});
}

void StripeLinks::lose_failed() {
  for (size_t stripe = 1; stripe < lost_.size(); ++stripe) {
    if (!lost_[stripe] && links_[stripe]->failed()) lose(stripe);
  }
}

void StripeLinks::close(bool flush) {
  if (flush && !flushing_ && !closing_) links_[0]->tell({.kind = leaving});
  flushing_ = flush && !closing_ && failure_.ok() && may_be_asked();
  if (flushing_) return;
  closing_ = true;
  for (auto& link : links_) link->close(flush);
}

bool StripeLinks::closed() const {
  return !flushing_ &&
         std::all_of(links_.begin(), links_.end(), [](auto& link) { return link->closed(); });
}

void StripeLinks::confirm(uint64_t tag) {
  heard_ = Clock::now();
  links_[0]->tell({.kind = confirmed, .tag = tag});
}

void StripeLinks::ask(uint64_t tag, size_t place, size_t stripe, uint64_t answer) {
  links_[0]->tell({.kind = wanted, .tag = tag, .place = place, .stripe = stripe, .answer = answer});
}

StripeLinks::Sent* StripeLinks::unconfirmed(uint64_t tag, size_t place) {
  for (Sent& message : sent_) {
    if (message.tag == tag && !message.confirmed && place-- == 0) return &message;
  }
  return nullptr;
}

// The peer may yet ask for a part of a message.
bool StripeLinks::may_be_asked() const {
  if (peer_leaves_ || links_[0]->failed()) return false;
  return !std::all_of(sent_.begin(), sent_.end(), [](const Sent& one) { return one.confirmed; });
}

void StripeLinks::hear(const Note& note) {
  if (closing_) return;
  heard_ = Clock::now();
  if (note.kind == stripe_lost) return lose(note.stripe);
  if (note.kind == leaving) {
    peer_leaves_ = true;
    return;
  }
  Sent* message = unconfirmed(note.tag, note.place);
  const bool valid = message != nullptr && note.stripe < lost_.size();
  if (!valid) {
    return fail(Status(Code::transport,
                       "a message over several NICs: expected one that the peer has not confirmed; "
                       "got another; run the same hetcomm version on every rank"));
  }
  if (note.kind == confirmed) {
    message->confirmed = true;
  } else {
    lose(note.stripe);
    send_again(*message, note.stripe, note.answer);
  }
}

void StripeLinks::send_again(Sent& message, size_t stripe, uint64_t tag) {
  const auto& sizes = message.sizes;
  const size_t before = std::accumulate(sizes.begin(), sizes.begin() + stripe, size_t{0});
  links_[0]->send(tag, message.data + before, sizes[stripe], message.memory,
                  message.again.emplace_back());
}

// A failed part costs its stripe, or the link if this is the first stripe.
void StripeLinks::look_at_parts(const Sent& message) {
  for (size_t stripe = 1; stripe < message.parts.size(); ++stripe) {
    const Request& part = message.parts[stripe];
    if (part.done && !part.status.ok() && !closing_) lose(stripe);
  }
  if (message.parts[0].done && !message.parts[0].status.ok()) fail(message.parts[0].status);
  for (const Request& part : message.again) {
    if (part.done && !part.status.ok()) fail(part.status);
  }
}

void StripeLinks::fail(const Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  close(false);
}

bool StripeLinks::busy() const {
  if (!sent_.empty() || flushing_ || (closing_ && !closed())) return true;
  for (size_t stripe = 0; stripe < lost_.size(); ++stripe) {
    if (lost_[stripe] && !closing_ && !silent(stripe)) return true;
  }
  return false;
}

bool StripeLinks::progress(Clock::time_point now) {
  bool moved = false;
  for (size_t stripe = 0; stripe < lost_.size(); ++stripe) {
    if (lost_[stripe] && links_[stripe]->closed() && !silent(stripe)) ++turns_[stripe];
  }
  if (!closing_) lose_failed();
  for (const Sent& message : sent_) look_at_parts(message);
  for (auto message = sent_.begin(); message != sent_.end();) {
    moved |= advance(*message, now);
    const bool over = message->read() && (message->confirmed || closing_);
    if (over) drop_copy(*message);
    message = over ? sent_.erase(message) : std::next(message);
  }
  if (flushing_ && !may_be_asked()) close(true);
  return moved;
}

bool StripeLinks::copy(Sent& message) {
  const size_t bytes = message.bytes();
  if (message.memory != MemoryKind::host || copied_ + bytes > kMostCopied) return false;
  if (bytes <= kShort && !spare_.empty()) {
    message.copy = std::move(spare_.back());
    spare_.pop_back();
  } else {
    message.copy = std::make_unique_for_overwrite<std::byte[]>(std::max(bytes, kShort));
  }
  std::memcpy(message.copy.get(), message.data, bytes);
  message.data = message.copy.get();
  copied_ += bytes;
  return true;
}

void StripeLinks::drop_copy(Sent& message) {
  if (!message.copy) return;
  copied_ -= message.bytes();
  if (message.bytes() <= kShort && spare_.size() < kMostSpare) {
    spare_.push_back(std::move(message.copy));
  }
}

// True if the message is complete for its sender.
bool StripeLinks::advance(Sent& message, Clock::time_point now) {
  if (message.whole == nullptr || !message.read()) return false;
  if (!message.confirmed && !closing_) {
    if (message.posted == Clock::time_point()) message.posted = now;
    const bool late = now - std::max(message.posted, heard_) >= kPatience;
    if (!(late || message.bytes() <= kShort) || !copy(message)) return false;
  }
  Request& whole = *std::exchange(message.whole, nullptr);
  if (!message.confirmed) {
    whole.status = failure_;
    for (const Request& part : message.parts) {
      if (closing_ && whole.status.ok()) whole.status = part.status;
    }
  }
  whole.bytes = 0;
  whole.done = true;
  return true;
}

}  // namespace hetcomm
