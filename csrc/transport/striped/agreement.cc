// Confirmations, and what both ends of a link say after the loss of a stripe. README.md has the
// protocol.

#include <algorithm>
#include <string>
#include <utility>

#include "transport/striped/stripe_links.h"

namespace hetcomm {
namespace {

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
  const uint64_t mask = mask_of(lost_stripes());
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

bool StripeLinks::agreement_due() const {
  // Otherwise the peer announces its messages once more.
  const bool same_stripes = due_ && due_->stripe == mask_of(lost_stripes());
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

}  // namespace hetcomm
