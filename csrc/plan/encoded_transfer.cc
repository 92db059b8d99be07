// The part of PlanBuilder that encodes transfers.
#include <algorithm>

#include "codec/codec.h"
#include "plan/builder.h"
#include "plan/steps.h"

namespace hetcomm {
namespace {

constexpr int64_t kLeastBytes = 16 << 10;  // below, a message takes longer than its bytes
constexpr int64_t kPartBytes = 1 << 20;    // the wire carries one part during the work on others
constexpr int64_t kMostParts = 256;        // issuing the steps then stays cheap
constexpr int kSlots = 4;                  // parts under way between two ranks, in each direction

}  // namespace

bool PlanBuilder::lossy() const { return codec_ && !codec_->lossless(); }

bool PlanBuilder::rounds(const std::vector<int>& ranks, const Range& piece) const {
  if (!lossy() || piece.bytes() < kLeastBytes) return false;
  if (!codec_->encodes(piece.dtype) || encoded(piece).bytes() > piece.bytes()) return false;
  if (topology_.hosts().size() == 1) return ranks.size() > 1;  // a codec of the level host
  const auto apart = [&](int rank) { return !topology_.same_host(rank, ranks[0]); };
  return std::any_of(ranks.begin(), ranks.end(), apart);
}

Range PlanBuilder::encoded(const Range& slot) const {
  return {slot.space, slot.offset, slot.count, slot.dtype, codec_};
}

void PlanBuilder::encode(int rank, const Range& source, const Range& target,
                         const Range& elements) {
  if (!builds(rank)) return;
  Step step{.kind = &steps::encode, .sources = {placed(source)}, .target = target};
  if (spec_.feedback) {
    const int64_t position = elements.offset / static_cast<int64_t>(size_of(elements.dtype));
    step.sources.push_back(
        Range{Space::residual, 0, 0, Dtype::float32}.part(position, source.count));
  }
  append(rank, std::move(step));
}

void PlanBuilder::decode(int rank, const Range& source, const Range& target) {
  own_step(steps::decode, rank, {source}, target);
}

// The host needs the length of a message without loss. So elements in device memory are encoded
// only where they pass through the host anyway. A striped link needs the length at both ends. Ranks
// notice disagreeing splits of an all_to_all by the lengths of messages alone.
bool PlanBuilder::encodes(int from, int to, const Range& source) {
  if (!codec_ || !codec_->lossless() || !codec_->encodes(source.dtype)) return false;
  if (source.bytes() < kLeastBytes) return false;
  if (!spec_.splits.empty() || topology_.same_host(from, to)) return false;
  if (topology_.native(from) && !topology_.staged(from, to)) return false;
  if (topology_.native(to) && !topology_.staged(to, from)) return false;
  const auto [known, is_new] = striped_.try_emplace({from, to}, false);
  if (is_new) known->second = !topology_.rails(from, to).empty();
  return !known->second;
}

void PlanBuilder::encoded_transfer(int from, const Range& source, int to, const Range& target) {
  const int64_t parts = std::clamp(source.bytes() / kPartBytes, int64_t{1}, kMostParts);
  const int64_t most = (source.count + parts - 1) / parts;
  for (int64_t first = 0; first < source.count; first += most) {
    const int64_t count = std::min(most, source.count - first);
    // Both ends reserve scratch, so that the builds of both have it at the same place.
    const Range out = encoded_slot(from, to, true, count);
    const Range in = encoded_slot(to, from, false, count);
    if (!builds(from) && !builds(to)) continue;
    const Range sent =
        builds(from) ? encode_once(from, placed(source.part(first, count)), out) : out;
    message(from, sent, to, in);
    decode(to, in, target.part(first, count));
  }
}

// The elements of `source`, encoded in `slot`, or where a step has encoded them before.
Range PlanBuilder::encode_once(int rank, const Range& source, const Range& slot) {
  if (topology_.native(rank)) {  // whose steps have no accesses yet
    own_step(steps::encode, rank, {source}, slot);
    return slot;
  }
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
