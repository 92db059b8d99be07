#include "transport/striped/stripe_links.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

namespace hetcomm {
namespace {

enum Kind : uint64_t {  // of notes, README.md
  confirmed,
  wanted,
  losing,
  announced,
  announced_all,
  agreement,
  hurry,
  leaving
};

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
constexpr size_t kOverhead = 512;  // of a copy
// Short messages that are not divided are confirmed together, at the latest after so many bytes.
constexpr size_t kUntoldBytes = 1 << 20;
// An agreement needs the tags that this end has confirmed and the peer has not heard of. These are
// on their way, so they are few.
constexpr size_t kMostReceived = 1 << 16;

uint64_t mask_of(const Layout& stripes) {
  uint64_t mask = 0;
  for (size_t stripe : stripes) mask |= uint64_t{1} << stripe;
  return mask;
}

Layout layout_of(uint64_t mask, size_t stripes) {
  Layout layout;
  for (size_t stripe = 0; stripe < std::min<size_t>(stripes, 64); ++stripe) {
    if ((mask >> stripe & 1) != 0) layout.push_back(stripe);
  }
  return layout;
}

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

Layout StripeLinks::stripes_left() const {
  Layout stripes;
  for (size_t stripe = 0; stripe < lost_.size(); ++stripe) {
    if (!lost_[stripe]) stripes.push_back(stripe);
  }
  return stripes;
}

uint64_t StripeLinks::lost_mask() const {
  Layout lost;
  for (size_t stripe = 0; stripe < lost_.size(); ++stripe) {
    if (lost_[stripe]) lost.push_back(stripe);
  }
  return mask_of(lost);
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

bool StripeLinks::lose(const Layout& stripes) {
  bool lost = false;
  for (size_t stripe : stripes) {
    if (stripe >= lost_.size() || lost_[stripe] || closing_ || left() == 1) continue;
    lost_[stripe] = lost = true;
    links_[stripe]->close(false);
  }
  if (!lost) return false;
  first_ = stripes_left().front();
  if (opened_) announce();
  return true;
}

bool StripeLinks::lose_failed() {
  if (closing_ || peer_leaves_) return false;
  Layout failed;
  for (size_t stripe = 0; stripe < lost_.size(); ++stripe) {
    if (!lost_[stripe] && links_[stripe]->failed()) failed.push_back(stripe);
  }
  if (failed.empty()) return false;
  lose(failed);
  if (!unreachable()) return true;
  Request request;  // the error of a failed link
  links_[first_]->send(0, nullptr, 0, MemoryKind::host, request);
  fail(request.status);
  return true;
}

void StripeLinks::open() {
  if (!std::exchange(opened_, true) && any_lost()) announce();
}

// Tells the peer which messages this end has sent without a confirmation.
void StripeLinks::announce() {
  agreed_ = false;
  holding_ = true;
  const uint64_t mask = lost_mask();
  // Over all stripes left: the peer may have lost the first of them.
  ++epoch_;
  for (size_t stripe : stripes_left()) {
    links_[stripe]->tell({.kind = losing, .stripe = mask, .answer = epoch_});
  }
  if (peer_leaves_) return resume();  // it receives nothing more
  std::map<uint64_t, const Sent*> in_order;
  for (const auto& [key, message] : unconfirmed_) in_order.emplace(key.second, &*message);
  Note note;
  const auto tell_note = [&] {
    if (note.place > 0) tell(note);
    note = {.kind = announced, .answer = epoch_};
  };
  tell_note();
  for (const auto& [number, message] : in_order) {
    const uint64_t stripes = mask_of(message->layout());
    if (note.place == Note::kMostTags || (note.place > 0 && note.stripe != stripes)) tell_note();
    note.stripe = stripes;
    note.tags[note.place++] = message->tag;
  }
  tell_note();
  tell({.kind = announced_all, .place = confirmed_, .stripe = mask, .answer = epoch_});
  if (leaves_) tell({.kind = leaving});
}

// The peer has posted receives for all that it has not received, by the stripes left.
void StripeLinks::resume() {
  holding_ = false;
  outgoing_ = stripes_left();
  std::map<uint64_t, Messages::iterator> in_order;
  for (const auto& [key, message] : unconfirmed_) in_order.emplace(key.second, message);
  for (const auto& [number, message] : in_order) {
    if (message->divided()) continue;
    const Sent::Part& last = message->again.empty() ? message->parts[0] : message->again.back();
    if (!lost_[last.stripe]) continue;
    send_again(message, message->data, message->bytes, message->tag, first_);
  }
  for (const auto& message : std::exchange(held_, {})) post(message);
  if (!sent_.empty() && hurried_) tell({.kind = hurry});
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

void StripeLinks::confirm(uint64_t tag, size_t bytes) {
  received_.push_back(tag);
  if (received_.size() > kMostReceived) {
    received_.pop_front();
    ++received_before_;
  }
  untold_bytes_ += bytes;
  const uint64_t untold = received_before_ + received_.size() - told_;
  const bool awaited = (tag & kPartTag) != 0 || bytes > kShort;
  if (awaited) heard_ = Clock::now();
  if (awaited || confirms_at_once_ || untold >= Note::kMostTags || untold_bytes_ >= kUntoldBytes) {
    tell_confirmations();
  }
}

void StripeLinks::tell_confirmations() {
  untold_bytes_ = 0;
  while (told_ < received_before_ + received_.size()) {
    Note note{.kind = confirmed, .tag = told_};
    for (size_t i = told_ - received_before_; i < received_.size(); ++i) {
      if (note.place == Note::kMostTags) break;
      note.tags[note.place++] = received_[i];
    }
    told_ += note.place;
    tell(note);
  }
}

void StripeLinks::ask(uint64_t tag, size_t place, size_t stripe, size_t carrier, uint64_t answer) {
  tell({.kind = wanted,
        .tag = tag,
        .place = place,
        .stripe = stripe,
        .answer = answer,
        .tags = {carrier}});
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

void StripeLinks::hear(const Note& note) {
  if (closing_) return;
  heard_ = Clock::now();
  switch (note.kind) {
    case confirmed:
      return on_confirmations(note);
    case wanted:
      return on_wanted(note);
    case losing:
      if (note.answer <= peer_epoch_) return;  // it came over another stripe
      peer_epoch_ = note.answer;
      announced_.clear();
      due_.reset();
      lose(layout_of(note.stripe, lost_.size()));
      return;
    case announced:
      return on_announced(note);
    case announced_all:
      if (note.answer == peer_epoch_) due_ = note;
      return;
    case agreement:
      if (holding_ && note.answer == epoch_) resume();
      return;
    case hurry:
      confirms_at_once_ = true;
      return tell_confirmations();
    case leaving:
      peer_leaves_ = true;
      if (holding_) resume();
      return tell_confirmations();
    default:
      return refuse(note);
  }
}

void StripeLinks::refuse(const Note& note) {
  fail(Status(Code::transport,
              "a message over several NICs: expected a note about one that the peer has not "
              "confirmed; got another of kind " +
                  std::to_string(note.kind) + "; run the same hetcomm version on every rank"));
}

void StripeLinks::on_confirmations(const Note& note) {
  // A lost stripe may have lost earlier ones. The agreement repeats them.
  if (note.tag > confirmed_ && any_lost()) return;
  if (note.place > Note::kMostTags || note.tag > confirmed_) return refuse(note);
  for (uint64_t i = confirmed_ - note.tag; i < note.place; ++i) {
    const auto found = unconfirmed_.lower_bound({note.tags[i], 0});
    if (found == unconfirmed_.end() || found->first.first != note.tags[i]) return refuse(note);
    const Messages::iterator message = found->second;
    unconfirmed_.erase(found);
    ++confirmed_;
    message->confirmed = true;
    if (!message->kept) continue;
    drop_copy(*message);
    kept_.erase(message);
  }
}

void StripeLinks::on_announced(const Note& note) {
  if (note.place > Note::kMostTags) return refuse(note);
  if (note.answer != peer_epoch_) return;
  for (uint64_t i = 0; i < note.place; ++i) {
    announced_.push_back({note.tags[i], layout_of(note.stripe, lost_.size())});
  }
}

void StripeLinks::on_wanted(const Note& note) {
  const size_t carrier = note.tags[0];
  if (carrier >= lost_.size()) return refuse(note);
  if (lost_[carrier]) return;  // the peer asks again
  auto found = unconfirmed_.lower_bound({note.tag, 0});
  for (uint64_t place = note.place; place > 0 && found != unconfirmed_.end(); --place) ++found;
  if (found == unconfirmed_.end() || found->first.first != note.tag) return refuse(note);
  const Messages::iterator message = found->second;
  const std::byte* from = message->data;
  for (const Sent::Part& part : message->parts) {
    if (part.stripe == note.stripe) {
      return send_again(message, from, part.bytes, note.answer, carrier);
    }
    from += part.bytes;
  }
  refuse(note);
}

void StripeLinks::send_again(Messages::iterator message, const std::byte* data, size_t bytes,
                             uint64_t tag, size_t carrier) {
  Sent::Part& part = message->again.emplace_back(Sent::Part{carrier, bytes, {}});
  links_[carrier]->send(tag, data, bytes, message->memory, part.request);
  if (std::exchange(message->kept, false)) sent_.splice(sent_.end(), kept_, message);
}

// Only its confirmation is missing.
void StripeLinks::keep(Messages::iterator message) {
  message->kept = true;
  kept_.splice(kept_.end(), sent_, message);
}

bool StripeLinks::agreement_due() const {
  // Otherwise the peer announces its messages once more.
  const bool same_stripes = due_ && due_->stripe == lost_mask();
  if (!same_stripes || closing_ || !opened_) return false;
  for (size_t stripe = 0; stripe < lost_.size(); ++stripe) {
    if (lost_[stripe] && !silent(stripe)) return false;
  }
  return true;
}

std::vector<StripeLinks::Announced> StripeLinks::begin_agreement() {
  incoming_ = stripes_left();
  agreed_ = true;
  std::map<uint64_t, int> received;  // since the last confirmation that the peer knows
  const uint64_t known = due_->place;
  if (known < received_before_ || known > received_before_ + received_.size()) {
    refuse(*due_);
    return {};
  }
  for (size_t i = known - received_before_; i < received_.size(); ++i) ++received[received_[i]];
  told_ = known;
  tell_confirmations();
  std::vector<Announced> rest;
  for (Announced& message : std::exchange(announced_, {})) {
    if (received[message.tag] > 0) {
      --received[message.tag];
    } else {
      rest.push_back(std::move(message));
    }
  }
  return rest;
}

void StripeLinks::end_agreement() {
  tell({.kind = agreement, .answer = due_->answer});
  due_.reset();
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
