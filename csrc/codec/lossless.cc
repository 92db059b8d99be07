#include "codec/lossless.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <optional>
#include <string>

#include "base/instruction_set.h"
#include "codec/lossless_kernels.h"

namespace hetcomm {
namespace {

constexpr uint32_t kMark = 0x4c435430;
constexpr int kMostWidth = 4;
constexpr size_t kMostSkipped = 15;  // blocks that are not tried after blocks that did not shrink
constexpr size_t kSamples = 256;     // symbols of a block that decide on its table

struct MessageHeader {
  uint32_t mark;
  uint32_t bytes;
  uint64_t count;
};
struct BlockHeader {
  uint8_t width;
  uint8_t stored;
  uint16_t escapes;
};
constexpr int kNear = 1, kFar = 2;

std::optional<LosslessFormat> format_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::bfloat16:
      return LosslessFormat::bfloat16;
    case Dtype::float16:
      return LosslessFormat::float16;
    case Dtype::float32:
      return LosslessFormat::float32;
    default:
      return std::nullopt;
  }
}

// By InstructionSet.
constexpr const LosslessKernels* kKernels[] = {
    &lossless_kernels_baseline,
#ifdef __x86_64__
    &lossless_kernels_avx2,
    &lossless_kernels_avx512,
#endif
};

const LosslessKernels& kernels() {
  static const LosslessKernels& chosen = *kKernels[static_cast<size_t>(instruction_set())];
  return chosen;
}

size_t blocks_of(size_t count) { return (count + kLosslessBlock - 1) / kLosslessBlock; }
size_t groups_of(size_t count) { return (count + kLosslessGroup - 1) / kLosslessGroup; }
size_t directory_end(size_t count) {
  return sizeof(MessageHeader) + blocks_of(count) * sizeof(uint16_t);
}

// The sizes that a block's header implies.
struct BlockLayout {
  size_t table, near, far, codes;

  BlockLayout(LosslessFormat format, size_t count, int width, int stored)
      : table(width == 0 ? 1 : (1 << width) - 1),
        near(stored & kNear ? count : 0),
        far(stored & kFar ? far_bytes(format, count) : 0),
        codes(groups_of(count) * width * sizeof(uint64_t)) {}

  static size_t far_bytes(LosslessFormat format, size_t count) {
    switch (format) {
      case LosslessFormat::bfloat16:
        return 0;
      case LosslessFormat::float16:
        return groups_of(count) * 3 * sizeof(uint64_t);
      default:
        return count * sizeof(uint16_t);
    }
  }
  size_t bytes() const { return sizeof(BlockHeader) + table + near + far + codes; }
};

// The most frequent symbols of a sample, most frequent first, and their counts.
struct Frequencies {
  int distinct = 0, samples = 0;
  std::array<uint8_t, 16> symbols{};
  std::array<int, 16> counts{};

  Frequencies(const uint8_t* block, size_t count) {
    std::array<uint16_t, 256> histogram{};
    const size_t stride = std::max<size_t>(1, count / kSamples);
    // The place within a stride changes, because matrices repeat with powers of two.
    for (size_t begin = 0, shift = 0; begin + stride <= count; begin += stride, shift += 7) {
      ++histogram[block[begin + shift % stride]];
      ++samples;
    }
    std::array<uint32_t, 256> present;
    for (uint32_t symbol = 0; symbol < 256; ++symbol) {
      if (histogram[symbol] != 0) present[distinct++] = histogram[symbol] << 8 | (255 - symbol);
    }
    const int kept = std::min<int>(distinct, static_cast<int>(symbols.size()));
    std::partial_sort(present.begin(), present.begin() + kept, present.begin() + distinct,
                      std::greater<>());
    for (int i = 0; i < kept; ++i) {
      symbols[i] = static_cast<uint8_t>(255 - (present[i] & 255));
      counts[i] = static_cast<int>(present[i] >> 8);
    }
  }

  // The width with the fewest bits for each element, escapes included.
  int best_width() const {
    int best = kMostWidth, best_bits = INT32_MAX;
    for (int width = 1, coded = 0, entry = 0; width <= kMostWidth; ++width) {
      for (; entry < (1 << width) - 1; ++entry) coded += counts[entry];
      const int bits = width * samples + 8 * (samples - coded);
      if (bits < best_bits) best = width, best_bits = bits;
    }
    return best;
  }
};

// Encodes one block into less than `raw` bytes. Returns its length, or 0 if it does not shrink.
size_t encode_block(LosslessFormat format, uint8_t* encoded, LosslessStreams& streams,
                    const void* source, size_t count, size_t raw) {
  const int stored = kernels().formats[static_cast<int>(format)].split(streams, source, count);
  const Frequencies frequencies(streams.symbols, count);
  const bool alone = frequencies.distinct == 1 &&
                     std::memcmp(streams.symbols, streams.symbols + 1, count - 1) == 0;
  const int width = alone ? 0 : frequencies.best_width();
  const BlockLayout layout(format, count, width, stored);
  if (layout.bytes() >= raw) return 0;
  uint8_t* at = encoded + sizeof(BlockHeader);
  std::memcpy(at, frequencies.symbols.data(), layout.table);
  at += layout.table;
  std::memcpy(at, streams.near, layout.near);
  at += layout.near;
  if (format == LosslessFormat::float16) {
    if (layout.far != 0) kernels().pack_far(at, streams.far, count);
  } else {
    std::memcpy(at, streams.far, layout.far);
  }
  at += layout.far;
  int escapes = 0;
  if (!alone) {
    const auto most = static_cast<int>(raw - layout.bytes()) - 1;
    escapes = kernels().encode(at, streams.symbols, count, frequencies.symbols.data(), width, most);
    if (escapes < 0) return 0;
  }
  const BlockHeader header{static_cast<uint8_t>(width), static_cast<uint8_t>(stored),
                           static_cast<uint16_t>(escapes)};
  std::memcpy(encoded, &header, sizeof(header));
  return layout.bytes() + escapes;
}

Status decode_block(LosslessFormat format, void* target, LosslessStreams& streams,
                    const uint8_t* encoded, size_t bytes, size_t count) {
  const auto refuse = [](const std::string& expected, size_t got) {
    return Status(Code::transport, "lossless data: expected a block of " + expected + "; got " +
                                       std::to_string(got) + "; the data was changed on its way");
  };
  BlockHeader header;
  if (bytes < sizeof(header)) return refuse("4 bytes or more", bytes);
  std::memcpy(&header, encoded, sizeof(header));
  if (header.width > kMostWidth) return refuse("codes of 4 bits or less", header.width);
  if (header.stored > (kNear | kFar)) return refuse("two streams at most", header.stored);
  const BlockLayout layout(format, count, header.width, header.stored);
  if (bytes != layout.bytes() + header.escapes) {
    return refuse(std::to_string(layout.bytes() + header.escapes) + " bytes", bytes);
  }
  const uint8_t* at = encoded + sizeof(header);
  std::array<uint8_t, 16> table{};
  std::memcpy(table.data(), at, layout.table);
  at += layout.table;
  if (layout.near != 0) {
    std::memcpy(streams.near, at, count);
  } else {
    std::memset(streams.near, 0, count);
  }
  at += layout.near;
  if (layout.far == 0) {
    std::memset(streams.far, 0, count * sizeof(uint16_t));
  } else if (format == LosslessFormat::float16) {
    kernels().unpack_far(streams.far, at, count);
  } else {
    std::memcpy(streams.far, at, layout.far);
  }
  at += layout.far;
  if (header.width == 0) {
    if (header.escapes != 0) return refuse("no escapes", header.escapes);
    std::memset(streams.symbols, table[0], count);
  } else if (!kernels().decode(streams.symbols, at, count, table.data(), header.width,
                               header.escapes)) {
    return refuse("as many escapes as its codes have", header.escapes);
  }
  kernels().formats[static_cast<int>(format)].join(target, streams, count);
  return Status();
}

}  // namespace

bool lossless_encodes(Dtype dtype) { return format_of(dtype).has_value(); }

size_t lossless_capacity(Dtype dtype, size_t count) {
  return count * size_of(dtype) + directory_end(count);
}

size_t lossless_encode(Dtype dtype, void* encoded, const void* source, size_t count) {
  const LosslessFormat format = format_of(dtype).value();
  const size_t whole = count * size_of(dtype);
  auto* const begin = static_cast<uint8_t*>(encoded);
  uint8_t* at = begin + directory_end(count);
  LosslessStreams streams;
  size_t vain = 0, skipped = 0;  // attempts in a row that did not shrink a block; blocks not tried
  for (size_t block = 0; block < blocks_of(count); ++block) {
    const size_t first = block * kLosslessBlock;
    const size_t n = std::min(kLosslessBlock, count - first), raw = n * size_of(dtype);
    const auto* from = static_cast<const uint8_t*>(source) + first * size_of(dtype);
    const bool tried = skipped == std::min(vain, kMostSkipped);
    size_t bytes = tried ? encode_block(format, at, streams, from, n, raw) : 0;
    skipped = tried ? 0 : skipped + 1;
    if (tried) vain = bytes == 0 ? vain + 1 : 0;
    if (bytes == 0) {
      std::memcpy(at, from, raw);
      bytes = raw;
    }
    const auto length = static_cast<uint16_t>(bytes);
    std::memcpy(begin + sizeof(MessageHeader) + block * sizeof(length), &length, sizeof(length));
    at += bytes;
  }
  const auto bytes = static_cast<size_t>(at - begin);
  if (bytes >= whole || bytes > UINT32_MAX) {
    std::memcpy(encoded, source, whole);
    return whole;
  }
  const MessageHeader header{kMark + static_cast<uint32_t>(format), static_cast<uint32_t>(bytes),
                             count};
  std::memcpy(encoded, &header, sizeof(header));
  return bytes;
}

Status lossless_decode(Dtype dtype, void* target, const void* encoded, size_t bytes, size_t count) {
  const LosslessFormat format = format_of(dtype).value();
  const size_t whole = count * size_of(dtype);
  if (bytes == whole) {
    std::memcpy(target, encoded, whole);
    return Status();
  }
  const auto refuse = [](const std::string& expected, const std::string& got) {
    return Status(Code::transport, "lossless data: expected " + expected + "; got " + got +
                                       "; check that both ranks make the same call");
  };
  const auto* const begin = static_cast<const uint8_t*>(encoded);
  if (bytes > whole || bytes < directory_end(count)) {
    return refuse(std::to_string(directory_end(count)) + " to " + std::to_string(whole) + " bytes",
                  std::to_string(bytes));
  }
  MessageHeader header;
  std::memcpy(&header, begin, sizeof(header));
  if (header.mark != kMark + static_cast<uint32_t>(format)) {
    return refuse("data of " + std::string(name(dtype)), "other data");
  }
  if (header.count != count) {
    return refuse(std::to_string(count) + " elements", std::to_string(header.count));
  }
  if (header.bytes != bytes) {
    return refuse(std::to_string(header.bytes) + " bytes", std::to_string(bytes));
  }
  LosslessStreams streams;
  const uint8_t *at = begin + directory_end(count), *const end = begin + bytes;
  for (size_t block = 0; block < blocks_of(count); ++block) {
    uint16_t length;
    std::memcpy(&length, begin + sizeof(header) + block * sizeof(length), sizeof(length));
    const size_t first = block * kLosslessBlock;
    const size_t n = std::min(kLosslessBlock, count - first), raw = n * size_of(dtype);
    auto* to = static_cast<uint8_t*>(target) + first * size_of(dtype);
    if (length > end - at) {
      return refuse("blocks of " + std::to_string(end - at) + " bytes", std::to_string(length));
    }
    if (length == raw) {
      std::memcpy(to, at, raw);
    } else if (Status status = decode_block(format, to, streams, at, length, n); !status.ok()) {
      return status;
    }
    at += length;
  }
  if (at != end) return refuse("blocks up to the end", std::to_string(end - at) + " bytes more");
  return Status();
}

}  // namespace hetcomm
