#include "emulated/calls.h"

#include <algorithm>
#include <cstring>

#include "emulated/hostile.h"

namespace hetcomm::emulated {

namespace {

constexpr size_t kPortion = 1 << 20;  // bytes of one member's part of a round

char* at(void* base, size_t bytes) { return static_cast<char*>(base) + bytes; }
const char* at(const void* base, size_t bytes) { return static_cast<const char*>(base) + bytes; }
void* writable(const void* pointer) { return const_cast<void*>(pointer); }

class Collective {  // of one member
 public:
  Collective(const Call& call, Mesh& mesh, const Stop& stop)
      : call_(call), mesh_(mesh), stop_(stop), size_(size_of_type(call.type)) {
    label_ = {static_cast<uint16_t>(call.kind), static_cast<uint8_t>(call.type),
              static_cast<uint8_t>(call.reduction.op), call.sequence};
    if (call.reduction.factor_at != nullptr) {
      std::memcpy(factor_.bytes, call.reduction.factor_at, size_);
    } else {
      factor_ = call.reduction.factor;
    }
  }

  void run() {
    poison_result();
    switch (call_.kind) {
      case CallKind::all_reduce:
        return all_reduce();
      case CallKind::reduce_scatter:
        return reduce_scatter();
      case CallKind::reduce:
        return reduce();
      case CallKind::all_gather:
        return all_gather();
      default:
        return broadcast();
    }
  }

 private:
  // Goes by rounds, in which each member owns up to one portion of the elements.
  void all_reduce() {
    size_t portion = kPortion / size_;
    size_t members = static_cast<size_t>(mesh_.size());
    for (size_t first = 0; first < call_.count; first += portion * members) {
      size_t round = std::min(portion * members, call_.count - first);
      size_t part = (round + members - 1) / members;
      auto begin = [&](size_t member) { return first + std::min(round, member * part); };
      gather_parts([&](size_t owner) { return begin(owner); },
                   [&](size_t owner) { return begin(owner + 1) - begin(owner); }, begin(rank()));
      spread_parts(begin);
    }
  }

  void reduce_scatter() {
    size_t portion = kPortion / size_;
    for (size_t first = 0; first < call_.count; first += portion) {
      size_t round = std::min(portion, call_.count - first);
      gather_parts([&](size_t owner) { return owner * call_.count + first; },
                   [&](size_t) { return round; }, first);
    }
  }

  void reduce() {
    size_t portion = kPortion / size_, root = static_cast<size_t>(call_.peer);
    for (size_t first = 0; first < call_.count; first += portion) {
      size_t round = std::min(portion, call_.count - first);
      gather_parts([&](size_t) { return first; },
                   [&](size_t owner) { return owner == root ? round : 0; }, first);
    }
  }

  // Sends to each owner its part of this member's contribution. Combines the contributions to this
  // member's part, in member order, into the target at `into`. Positions are in elements.
  template <typename Begin, typename Count>
  void gather_parts(Begin&& begin, Count&& count, size_t into) {
    size_t members = static_cast<size_t>(mesh_.size()), own = count(rank());
    std::vector<char> arrived(members * own * size_), scaled;
    std::vector<Message> sends, receives;
    std::vector<const void*> sources(members);
    size_t total = 0, placed = 0;
    for (size_t owner = 0; owner < members; ++owner) total += count(owner);
    if (call_.reduction.scaled) scaled.resize(total * size_);
    for (size_t member = 0; member < members; ++member) {
      const void* part = at(call_.source, begin(member) * size_);
      if (call_.reduction.scaled) {
        void* place = scaled.data() + placed;
        scale(call_.type, factor_, place, part, count(member));
        part = place;
        placed += count(member) * size_;
      }
      char* place = arrived.data() + member * own * size_;
      sources[member] = member == rank() ? part : place;
      if (member == rank()) continue;
      if (count(member) > 0) sends.push_back(message(member, writable(part), count(member)));
      if (own > 0) receives.push_back(message(member, place, own));
    }
    mesh_.exchange(sends, receives, stop_);
    if (own == 0) return;
    void* target = at(call_.target, into * size_);
    combine(call_.type, call_.reduction.op, target, sources.data(), mesh_.size(), own);
    if (call_.reduction.averaged) divide(call_.type, mesh_.size(), target, own);
  }

  // Sends this member's part of the target to all other members, and receives theirs.
  template <typename Begin>
  void spread_parts(Begin&& begin) {
    std::vector<Message> sends, receives;
    size_t own = begin(rank() + 1) - begin(rank());
    for (size_t member = 0; member < static_cast<size_t>(mesh_.size()); ++member) {
      if (member == rank()) continue;
      size_t theirs = begin(member + 1) - begin(member);
      void* source = at(call_.target, begin(rank()) * size_);
      if (own > 0) sends.push_back(message(member, source, own));
      void* target = at(call_.target, begin(member) * size_);
      if (theirs > 0) receives.push_back(message(member, target, theirs));
    }
    mesh_.exchange(sends, receives, stop_);
  }

  void all_gather() {
    void* own = at(call_.target, rank() * call_.count * size_);
    if (own != call_.source) std::memmove(own, call_.source, call_.count * size_);
    spread_parts([&](size_t member) { return member * call_.count; });
  }

  void broadcast() {
    std::vector<Message> sends, receives;
    size_t root = static_cast<size_t>(call_.peer);
    if (rank() != root) {
      receives.push_back(message(root, call_.target, call_.count));
    } else {
      // In place the root writes nothing, like NCCL's.
      if (call_.target != call_.source)
        std::memmove(call_.target, call_.source, call_.count * size_);
      for (size_t member = 0; member < static_cast<size_t>(mesh_.size()); ++member) {
        if (member != root) sends.push_back(message(member, call_.target, call_.count));
      }
    }
    mesh_.exchange(sends, receives, stop_);
  }

  void poison_result() const {
    const size_t bytes = call_.count * size_, all = bytes * static_cast<size_t>(mesh_.size());
    const bool is_root = mesh_.rank() == call_.peer;
    const bool writes = call_.kind == CallKind::reduce      ? is_root
                        : call_.kind == CallKind::broadcast ? !is_root
                                                            : true;
    if (!writes) return;
    poison_target(call_.target, call_.kind == CallKind::all_gather ? all : bytes, call_.source,
                  call_.kind == CallKind::reduce_scatter ? all : bytes);
  }

  size_t rank() const { return static_cast<size_t>(mesh_.rank()); }
  Message message(size_t peer, void* data, size_t count) const {
    return {static_cast<int>(peer), data, count * size_, label_};
  }

  const Call& call_;
  Mesh& mesh_;
  const Stop& stop_;
  const size_t size_;
  Label label_;
  Scalar factor_;
};

}  // namespace

std::string call_name(uint16_t kind) {
  constexpr const char* names[] = {"all_reduce", "reduce_scatter", "reduce",
                                   "all_gather", "broadcast",      "a message",
                                   "split",      "a connection",   "ncclCommFinalize"};
  return kind < std::size(names) ? names[kind] : "an unknown call";
}

void run_calls(const std::vector<Call>& calls, Mesh& mesh, const Stop& stop) {
  std::vector<Message> sends, receives;
  for (const Call& call : calls) {
    if (call.kind != CallKind::message) {
      if (call.count > 0) Collective(call, mesh, stop).run();
      continue;
    }
    Message message{call.peer,
                    call.sending ? writable(call.source) : call.target,
                    call.count * size_of_type(call.type),
                    {static_cast<uint16_t>(call.kind), static_cast<uint8_t>(call.type), 0, 0}};
    (call.sending ? sends : receives).push_back(message);
  }
  if (!sends.empty() || !receives.empty()) mesh.exchange(sends, receives, stop);
}

}  // namespace hetcomm::emulated
