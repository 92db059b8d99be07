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

std::shared_ptr<Communicator> Communicator::split(int color, int key,
                                                  const CommunicatorOptions& options) {
  auto child = std::make_shared<Communicator>(rank_, size_, device_, options);
  uint64_t ticket;
  uint32_t number;
  {
    std::lock_guard lock(mutex_);
    ticket = issued_++;
    number = ++splits_;
  }
  child->in_background([=, parent = shared_from_this(), self = child.get()] {
    self->join(*parent, ticket, color, key, number);
  });
  return child;
}

void Communicator::join(Communicator& parent, uint64_t ticket, int color, int key,
                        uint32_t number) {
  address_ = parent.address_;
  Stop stop{.abort = &abort_, .also = &parent.abort_};
  Socket listener = Socket::listen_at(address_, size_);
  Wish own{color, key, {listener.local()}};
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
  for (size_t i = 0; i < 4; ++i) {  // so that no member of another split is let in
    magic_[i] ^= static_cast<uint8_t>(number >> (8 * i));
    magic_[4 + i] ^= static_cast<uint8_t>(static_cast<uint32_t>(color) >> (8 * i));
  }
  if (settings().strikes(FaultKind::init_hang, rank_)) wait_for_abort();
  choose_network();
  mesh_ = std::make_unique<Mesh>(rank_, contacts, magic_, listener, stop);
}

}  // namespace hetcomm::emulated
