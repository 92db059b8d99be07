// Transfers that a codec encodes. They belong to PlanBuilder.
#include <algorithm>

#include "codec/codec.h"
#include "plan/builder.h"
#include "plan/steps.h"

namespace hetcomm {
namespace {

constexpr int64_t kLeastBytes = 16 << 10;  // below, a message takes longer than its bytes
constexpr int64_t kPartBytes = 1 << 20;    // one part is encoded while the last one is sent
constexpr int kSlots = 4;                  // parts under way between two ranks, in each direction

}  // namespace

// Elements in device memory would pass through the host, so only host memory is encoded.
bool PlanBuilder::encodes(int from, int to, const Range& source) const {
  return codec_ && codec_->encodes(source.dtype) && source.bytes() >= kLeastBytes &&
         !topology_.same_host(from, to) && !topology_.native(from) && !topology_.native(to);
}

void PlanBuilder::encoded_transfer(int from, const Range& source, int to, const Range& target) {
  const int64_t most = kPartBytes / static_cast<int64_t>(size_of(source.dtype));
  for (int64_t first = 0; first < source.count; first += most) {
    const int64_t count = std::min(most, source.count - first);
    // The scratch of every rank is reserved in every build, since scratch_on_all() depends on it.
    const Range out = encoded_slot(from, to, true, count);
    const Range in = encoded_slot(to, from, false, count);
    if (!recorded(from) && !recorded(to)) continue;
    const Range sent = recorded(from) ? encode(from, placed(source.part(first, count)), out) : out;
    message(from, sent, to, in);
    own_step(steps::decode, to, {in}, target.part(first, count));
  }
}

// The elements of `source`, encoded in `slot`, or where a step has encoded them before.
Range PlanBuilder::encode(int rank, const Range& source, const Range& slot) {
  RankState& state = this->state(rank);
  const auto last_write = [&state](const Range& range) {
    return state.accesses[static_cast<int>(range.space)].last_write(range);
  };
  const std::tuple key(source.space, source.offset, source.count);
  const auto known = state.encoded.find(key);
  if (known != state.encoded.end()) {
    const auto& [range, step] = known->second;
    if (last_write(source) < step && last_write(range) == step) return range;
  }
  own_step(steps::encode, rank, {source}, slot);
  state.encoded[key] = {slot, static_cast<int>(state.plan.steps.size()) - 1};
  return slot;
}

Range PlanBuilder::encoded_slot(int rank, int peer, bool sends, int64_t count) {
  auto& [slots, next] = slots_[{rank, peer, sends}];
  Range range{Space::scratch, 0, count, spec_.dtype, codec_};
  if (slots.size() < kSlots) {
    slots.push_back(range);
    slots.back().count = 0;
  }
  Range& slot = slots[next++ % kSlots];
  if (slot.count < count) {
    range.offset = reserve(rank, rank + 1, range.bytes());
    slot = range;
  }
  range.offset = slot.offset;
  return range;
}

}  // namespace hetcomm
