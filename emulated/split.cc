// Communicators made of the members of another.
#include <algorithm>
#include <cstring>
#include <exception>

#include "emulated/communicator.h"
#include "emulated/settings.h"

namespace hetcomm::emulated {

namespace {

struct Wish {
  int32_t color;
  int32_t key;
  Contact contact;
};

}  // namespace

void Communicator::split(int color, int key, const CommunicatorOptions& options, void** made) {
  auto child = std::make_shared<Communicator>(rank_, size_, device_, options);
  if (options_.split_share) child->abort_ = abort_;
  uint64_t ticket;
  uint32_t number;
  {
    std::lock_guard lock(mutex_);
    ticket = issued_++;
    number = ++splits_;
  }
  auto work = [=, this] {
    std::exception_ptr wrong;
    try {
      child->join(*this, ticket, color, key, number);
    } catch (...) {
      wrong = std::current_exception();
    }
    if (wrong) child->report(ccl_internal_error, "the split that was to make it failed");
    if (color != kNoColor) *made = child->enroll();
    if (wrong) std::rethrow_exception(wrong);
  };
  if (!options_.blocking) return in_background(work);
  try {
    work();
  } catch (const Aborted&) {
    throw Failure{ccl_internal_error, "the communicator was aborted while it was split"};
  }
}

void Communicator::join(Communicator& parent, uint64_t ticket, int color, int key,
                        uint32_t number) {
  address_ = parent.address_;
  connects_late_ = connects_at_first_use();
  Stop stop{.abort = abort_.get(), .also = parent.abort_.get()};
  if (settings().injects(FaultKind::split_hang, parent.rank_)) parent.wait_for_abort();
  if (settings().injects(FaultKind::split_error, parent.rank_)) {
    throw Failure{ccl_system_error, "the split failed, as HETCOMM_EMULATED_FAULT=split_error asks"};
  }
  Socket listener = Socket::listen_at(address_, size_);
  Wish own{color, key, {listener.local(), place_of(device_)}};
  std::vector<Wish> wishes(static_cast<size_t>(size_));
  std::exception_ptr wrong;
  parent.in_turn(ticket, [&] {
    std::vector<Message> sends, receives;
    Label label{static_cast<uint16_t>(CallKind::split), 0, 0, number};
    for (int peer = 0; peer < size_; ++peer) {
      sends.push_back({peer, &own, sizeof own, label});
      receives.push_back({peer, &wishes[static_cast<size_t>(peer)], sizeof own, label});
    }
    try {
      parent.mesh_->exchange(sends, receives, stop);
    } catch (...) {
      wrong = std::current_exception();
    }
  });
  if (wrong) std::rethrow_exception(wrong);
  if (stop.raised()) throw Aborted{};
  if (color == kNoColor) return;
  std::vector<int> members;
  for (int peer = 0; peer < size_; ++peer) {
    if (wishes[static_cast<size_t>(peer)].color == color) members.push_back(peer);
  }
  auto wish = [&](int peer) -> const Wish& { return wishes[static_cast<size_t>(peer)]; };
  std::stable_sort(members.begin(), members.end(),
                   [&](int a, int b) { return wish(a).key < wish(b).key; });
  std::vector<Contact> contacts;
  for (int peer : members) contacts.push_back(wish(peer).contact);
  {
    std::lock_guard lock(mutex_);
    rank_ = static_cast<int>(std::find(members.begin(), members.end(), rank_) - members.begin());
    size_ = static_cast<int>(members.size());
  }
  std::memcpy(magic_, parent.magic_, sizeof magic_);
  for (size_t i = 0; i < 4; ++i) {  // so that members of other splits stay out
    magic_[i] ^= static_cast<uint8_t>(number >> (8 * i));
    magic_[4 + i] ^= static_cast<uint8_t>(static_cast<uint32_t>(color) >> (8 * i));
  }
  choose_network();
  mesh_ = std::make_unique<Mesh>(rank_, contacts, magic_, listener, stop);
}

}  // namespace hetcomm::emulated
