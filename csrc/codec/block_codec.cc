#include "codec/block_codec.h"

#include <algorithm>

#include "base/instruction_set.h"
#include "codec/block_kernels.h"
#include "device/cast.h"
#include "device/floating_point.h"

namespace hetcomm {
namespace {

constexpr size_t kBlock = BlockCodec::kBlock;

// By InstructionSet.
constexpr const BlockKernels* kKernels[] = {
    &block_kernels_baseline,
#ifdef __x86_64__
    &block_kernels_avx2,
    &block_kernels_avx512,
#endif
};

bool is_float(Dtype dtype, const void* memory) {
  return dtype == Dtype::float32 && reinterpret_cast<uintptr_t>(memory) % alignof(float) == 0;
}

// The elements as float32: where they are, or in `room`.
const float* widened(Dtype dtype, const void* elements, float* room, size_t count) {
  if (is_float(dtype, elements)) return static_cast<const float*>(elements);
  cast(Dtype::float32, room, dtype, elements, count);
  return room;
}

// Calls block(first, count) for each block until a call returns false.
template <typename Block>
bool for_blocks(size_t count, const Block& block) {
  for (size_t first = 0; first < count; first += kBlock) {
    if (!block(first, std::min(kBlock, count - first))) return false;
  }
  return true;
}

}  // namespace

const BlockKernels& block_kernels() {
  static const BlockKernels& chosen = *kKernels[static_cast<size_t>(instruction_set())];
  return chosen;
}

bool BlockCodec::encodes(Dtype dtype) const {
  return dtype == Dtype::float32 || dtype == Dtype::float16 || dtype == Dtype::bfloat16;
}

size_t BlockCodec::capacity(Dtype, size_t count) const {
  const size_t rest = count % kBlock;
  return count / kBlock * block_bytes(kBlock) + (rest ? block_bytes(rest) : 0);
}

size_t BlockCodec::encode(Dtype dtype, void* encoded, const void* source, float* residual,
                          size_t count) const {
  const FloatingPointDefaults defaults;
  const BlockKernels& kernels = block_kernels();
  auto* out = static_cast<std::byte*>(encoded);
  const auto* in = static_cast<const std::byte*>(source);
  alignas(64) float room[kBlock], decoded[kBlock];
  for_blocks(count, [&](size_t first, size_t number) {
    const float* values = widened(dtype, in + first * size_of(dtype), room, number);
    if (residual) {
      kernels.add(room, values, residual + first, number);
      values = room;
    }
    encode_block(out, values, number);
    if (residual) {
      decode_block(decoded, nullptr, out, number);
      kernels.lose(residual + first, values, decoded, number);
    }
    out += block_bytes(number);
    return true;
  });
  return static_cast<size_t>(out - static_cast<std::byte*>(encoded));
}

Status BlockCodec::decode(Dtype dtype, void* target, const void* encoded, size_t bytes,
                          size_t count) const {
  if (bytes != capacity(dtype, count)) {
    return Status(Code::transport, name() + ": expected " + std::to_string(capacity(dtype, count)) +
                                       " bytes of " + std::to_string(count) + " elements; got " +
                                       std::to_string(bytes));
  }
  return sum(dtype, target, nullptr, &encoded, 1, count);
}

Status BlockCodec::sum(Dtype dtype, void* target, const void* plain, const void* const* encoded,
                       int sources, size_t count) const {
  const FloatingPointDefaults defaults;
  alignas(64) float room[kBlock];
  const size_t stride = block_bytes(kBlock);
  const bool all = for_blocks(count, [&](size_t first, size_t number) {
    const size_t at = first * size_of(dtype);
    std::byte* const out = static_cast<std::byte*>(target) + at;
    float* const values = is_float(dtype, out) ? reinterpret_cast<float*>(out) : room;
    const float* added = nullptr;
    if (plain) added = widened(dtype, static_cast<const std::byte*>(plain) + at, room, number);
    for (int i = 0; i < sources; ++i) {
      const auto* const data = static_cast<const std::byte*>(encoded[i]) + first / kBlock * stride;
      if (!decode_block(values, added, data, number)) return false;
      added = values;
    }
    if (values == room) cast(dtype, out, Dtype::float32, room, number);
    return true;
  });
  if (all) return Status();
  return Status(Code::transport, name() + ": expected what this codec encodes; got other bytes");
}

int64_t BlockCodec::expected(Dtype dtype) const {
  return static_cast<int64_t>(1000 * block_bytes(kBlock) / (kBlock * size_of(dtype)));
}

// Of 8-bit elements, by bench/codecs.py.
int64_t BlockCodec::effort(Dtype dtype) const { return dtype == Dtype::float32 ? 300 : 600; }

}  // namespace hetcomm
