#include "codec/block_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "device/cast.h"

namespace hetcomm {
namespace {

constexpr size_t kBlock = BlockCodec::kBlock;

bool is_float(Dtype dtype, const void* memory) {
  return dtype == Dtype::float32 && reinterpret_cast<uintptr_t>(memory) % alignof(float) == 0;
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

bool BlockCodec::encodes(Dtype dtype) const {
  return dtype == Dtype::float32 || dtype == Dtype::float16 || dtype == Dtype::bfloat16;
}

size_t BlockCodec::capacity(Dtype, size_t count) const {
  const size_t rest = count % kBlock;
  return count / kBlock * block_bytes(kBlock) + (rest ? block_bytes(rest) : 0);
}

size_t BlockCodec::encode(Dtype dtype, void* encoded, const void* source, float* residual,
                          size_t count) const {
  auto* out = static_cast<std::byte*>(encoded);
  const auto* in = static_cast<const std::byte*>(source);
  alignas(64) float values[kBlock], decoded[kBlock];
  for_blocks(count, [&](size_t first, size_t number) {
    const std::byte* const elements = in + first * size_of(dtype);
    const float* wanted = values;
    if (is_float(dtype, elements) && !residual) {
      wanted = reinterpret_cast<const float*>(elements);
    } else {
      cast(Dtype::float32, values, dtype, elements, number);
    }
    float* const lost = residual ? residual + first : nullptr;
    if (lost) {
      for (size_t i = 0; i < number; ++i) values[i] += lost[i];
    }
    encode_block(out, wanted, number);
    if (lost) {
      decode_block(decoded, out, number, false);
      for (size_t i = 0; i < number; ++i) {
        const float difference = values[i] - decoded[i];
        lost[i] = std::isfinite(difference) ? difference : 0;
      }
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
  alignas(64) float values[kBlock];
  size_t block = 0;
  const size_t stride = block_bytes(kBlock);
  const bool all = for_blocks(count, [&](size_t first, size_t number) {
    const size_t at = first * size_of(dtype);
    std::byte* const out = static_cast<std::byte*>(target) + at;
    float* const sums = is_float(dtype, out) ? reinterpret_cast<float*>(out) : values;
    if (plain) cast(Dtype::float32, sums, dtype, static_cast<const std::byte*>(plain) + at, number);
    for (int i = 0; i < sources; ++i) {
      const auto* const data = static_cast<const std::byte*>(encoded[i]) + block * stride;
      if (!decode_block(sums, data, number, plain || i > 0)) return false;
    }
    if (sums == values) cast(dtype, out, Dtype::float32, values, number);
    ++block;
    return true;
  });
  if (all) return Status();
  return Status(Code::transport, name() + ": expected what this codec encodes; got other bytes");
}

int64_t BlockCodec::expected(Dtype dtype) const {
  return static_cast<int64_t>(1000 * block_bytes(kBlock) / (kBlock * size_of(dtype)));
}

// Of elements in float32, at four times the rate of lossless on bfloat16.
int64_t BlockCodec::effort(Dtype dtype) const { return dtype == Dtype::float32 ? 250 : 500; }

}  // namespace hetcomm
