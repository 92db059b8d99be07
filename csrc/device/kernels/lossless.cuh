// The lossless codec: codec/lossless.h has the layout. A team encodes or decodes a block of 4096
// elements. Thread i has the elements i, i + 32, ... of it, so that a ballot gives half a word of a
// bit plane. Fields have any alignment, so that threads write bytes.

constexpr int kEncodedHeader = 64;  // as base/encoded_header.h has it
constexpr unsigned kLosslessMark = 0x4c435430;
constexpr int kLosslessBlock = 4096, kLosslessGroup = 64, kLosslessSamples = 256;
constexpr int kMostWidth = 4, kMostEntries = (1 << kMostWidth) - 1;
constexpr int kBlockHeader = 4;  // bytes
constexpr int kStoredNear = 1, kStoredFar = 2;

struct LosslessHeader {
  unsigned mark, bytes;
  Count count;
};

HETCOMM_FUNCTION Count lossless_blocks(Count count) {
  return (count + kLosslessBlock - 1) / kLosslessBlock;
}
HETCOMM_FUNCTION Count lossless_directory_end(Count count) {
  return sizeof(LosslessHeader) + lossless_blocks(count) * sizeof(unsigned short);
}

// How a block is encoded, and where its fields begin.
template <class Bits>
struct LosslessBlock {
  int count, width, stored, escapes;

  HETCOMM_MEMBER int raw() const { return count * static_cast<int>(sizeof(typename Bits::Stored)); }
  HETCOMM_MEMBER int groups() const { return (count + kLosslessGroup - 1) / kLosslessGroup; }
  HETCOMM_MEMBER int entries() const { return width == 0 ? 1 : (1 << width) - 1; }
  HETCOMM_MEMBER int near() const { return kBlockHeader + entries(); }
  HETCOMM_MEMBER int far() const { return near() + ((stored & kStoredNear) != 0 ? count : 0); }
  HETCOMM_MEMBER int codes() const {
    const int bytes = !Bits::kFar             ? 0
                      : Bits::kFarPlanes != 0 ? groups() * Bits::kFarPlanes * 8
                                              : count * 2;
    return far() + ((stored & kStoredFar) != 0 ? bytes : 0);
  }
  HETCOMM_MEMBER int symbols() const { return codes() + groups() * width * 8; }  // of escapes
  HETCOMM_MEMBER int end() const { return symbols() + escapes; }
  HETCOMM_MEMBER int escape() const { return (1 << width) - 1; }  // the code of an escape
  HETCOMM_MEMBER int length() const { return end() < raw() ? end() : raw(); }
  HETCOMM_MEMBER bool shrinks() const { return end() < raw(); }
};

// The most frequent symbols of a block's samples, most frequent first. The rest are zeros.
struct SymbolTable {
  unsigned char symbols[kMostEntries];

  // The first index of the symbol below 2^width - 1; that number if there is none.
  HETCOMM_MEMBER int code(int symbol, int width) const {
    const int entries = (1 << width) - 1;
    int code = entries;
#pragma unroll
    for (int entry = kMostEntries - 1; entry >= 0; --entry) {
      if (entry < entries && symbols[entry] == symbol) code = entry;
    }
    return code;
  }
};

// Chooses the table and the width of a block as the host does. Returns the number of different
// symbols among the samples.
template <class Bits>
HETCOMM_FUNCTION int choose_table(SymbolTable& table, int& width,
                                  const typename Bits::Stored* source, int count) {
  constexpr int kOwned = 256 / kTeamThreads;  // a thread counts the symbols lane, lane + 32, ...
  const int lane = lane_of_thread();
  const int stride = count / kLosslessSamples > 1 ? count / kLosslessSamples : 1;
  const int samples = count / stride;
  int counts[kOwned] = {};
  for (int round = 0; round < samples; round += kTeamThreads) {
    const int sample = round + lane;
    const int symbol =
        sample < samples ? Bits::symbol(source[sample * stride + 7 * sample % stride]) : 256;
    for (int from = 0; from < kTeamThreads; ++from) {
      const int other = value_of(symbol, from);
#pragma unroll
      for (int own = 0; own < kOwned; ++own) counts[own] += other == own * kTeamThreads + lane;
    }
  }
  int distinct = 0;
#pragma unroll
  for (int own = 0; own < kOwned; ++own) distinct += count_bits(ballot(counts[own] != 0));
  int best_bits = 0x7fffffff, coded = 0;
  width = kMostWidth;
#pragma unroll
  for (int entry = 0; entry < kMostEntries; ++entry) {
    int keys[kOwned], greatest = 0;
#pragma unroll
    for (int own = 0; own < kOwned; ++own) {
      const int symbol = own * kTeamThreads + lane;
      keys[own] = counts[own] != 0 ? counts[own] << 8 | (255 - symbol) : 0;
      greatest = keys[own] > greatest ? keys[own] : greatest;
    }
    greatest = greatest_of<kTeamThreads>(greatest);
#pragma unroll
    for (int own = 0; own < kOwned; ++own) {
      if (keys[own] == greatest) counts[own] = 0;
    }
    table.symbols[entry] = static_cast<unsigned char>(greatest == 0 ? 0 : 255 - (greatest & 255));
    coded += greatest >> 8;
    // Tables have 1, 3, 7 or 15 entries.
    if (((entry + 1) & (entry + 2)) != 0) continue;
    const int bits_each = count_bits(static_cast<unsigned>(entry + 1));
    const int bits = bits_each * samples + 8 * (samples - coded);  // escapes included
    if (bits < best_bits) {
      width = bits_each;
      best_bits = bits;
    }
  }
  return distinct;
}

template <class Bits>
HETCOMM_FUNCTION LosslessBlock<Bits> choose_coding(SymbolTable& table,
                                                   const typename Bits::Stored* source, int count) {
  LosslessBlock<Bits> block = {count, 0, 0, 0};
  const int distinct = choose_table<Bits>(table, block.width, source, count);
  int near = 0, far = 0, differs = 0, escapes = 0;
  for (int at = lane_of_thread(); at < count; at += kTeamThreads) {
    const auto bits = source[at];
    const int symbol = Bits::symbol(bits);
    near |= Bits::near(bits);
    far |= Bits::far(bits);
    differs |= symbol != table.symbols[0];
    escapes += table.code(symbol, block.width) == block.escape();
  }
  const bool alone = distinct == 1 && ballot(differs != 0) == 0;
  if (ballot(near != 0) != 0) block.stored |= kStoredNear;
  if (ballot(far != 0) != 0) block.stored |= kStoredFar;
  block.escapes = team_sum(escapes);
  if (alone) block.width = block.escapes = 0;
  return block;
}

// Of blocks that follow one another: the bytes before one, and of all.
struct LosslessSums {
  Count before, all;
};

// Every team reads all lengths, 2 bytes for each 8 to 16 KiB of elements.
HETCOMM_FUNCTION LosslessSums lossless_sums(const unsigned short* lengths, Count blocks,
                                            Count number) {
  LosslessSums sums = {0, 0};
  for (Count block = lane_of_thread(); block < blocks; block += kTeamThreads) {
    sums.all += lengths[block];
    if (block < number) sums.before += lengths[block];
  }
  return {team_sum(sums.before), team_sum(sums.all)};
}

// Writes the length of each block behind the place of plain data, for lossless_encode_kernel.
template <class Bits>
__global__ void lossless_measure_kernel(unsigned char* memory, const typename Bits::Stored* source,
                                        Count count) {
  auto* const lengths = reinterpret_cast<unsigned short*>(memory + kEncodedHeader +
                                                          count * sizeof(typename Bits::Stored));
  each_block_of_team<kLosslessBlock>(count, [&](Count number, Count begin, int n) {
    SymbolTable table;
    const LosslessBlock<Bits> block = choose_coding<Bits>(table, source + begin, n);
    if (lane_of_thread() == 0) lengths[number] = static_cast<unsigned short>(block.length());
  });
}

HETCOMM_FUNCTION void write_plane(unsigned char* planes, int step, int width, int bit,
                                  bool condition) {
  const unsigned word = ballot(condition);
  const int lane = lane_of_thread();
  if (lane >= 4) return;
  planes[(step / 2 * width + bit) * 8 + step % 2 * 4 + lane] =
      static_cast<unsigned char>(word >> 8 * lane);
}

HETCOMM_FUNCTION int read_plane(const unsigned char* planes, int step, int width, int bit) {
  const int lane = lane_of_thread();
  return planes[(step / 2 * width + bit) * 8 + step % 2 * 4 + lane / 8] >> lane % 8 & 1;
}

// The bytes of elements at any address.
template <class Bits>
HETCOMM_FUNCTION void write_plain(unsigned char* target, const typename Bits::Stored* source,
                                  int count) {
  constexpr int kBytes = sizeof(typename Bits::Stored);
  for (int at = lane_of_thread(); at < count; at += kTeamThreads) {
    const auto bits = source[at];
#pragma unroll
    for (int byte = 0; byte < kBytes; ++byte) {
      target[at * kBytes + byte] = static_cast<unsigned char>(bits >> 8 * byte);
    }
  }
}

template <class Bits>
HETCOMM_FUNCTION void read_plain(typename Bits::Stored* target, const unsigned char* source,
                                 int count) {
  using Stored = typename Bits::Stored;
  constexpr int kBytes = sizeof(Stored);
  for (int at = lane_of_thread(); at < count; at += kTeamThreads) {
    unsigned bits = 0;
#pragma unroll
    for (int byte = 0; byte < kBytes; ++byte) {
      bits |= static_cast<unsigned>(source[at * kBytes + byte]) << 8 * byte;
    }
    target[at] = static_cast<Stored>(bits);
  }
}

template <class Bits>
HETCOMM_FUNCTION void write_block(unsigned char* out, const typename Bits::Stored* source,
                                  const LosslessBlock<Bits>& block, const SymbolTable& table) {
  const int lane = lane_of_thread();
  if (lane == 0) {
    out[0] = static_cast<unsigned char>(block.width);
    out[1] = static_cast<unsigned char>(block.stored);
    out[2] = static_cast<unsigned char>(block.escapes);
    out[3] = static_cast<unsigned char>(block.escapes >> 8);
#pragma unroll
    for (int entry = 0; entry < kMostEntries; ++entry) {
      if (entry < block.entries()) out[kBlockHeader + entry] = table.symbols[entry];
    }
  }
  int escapes = 0;
  for (int step = 0; step < 2 * block.groups(); ++step) {
    const int at = step * kTeamThreads + lane;
    const bool inside = at < block.count;
    const typename Bits::Stored bits = inside ? source[at] : 0;
    const int symbol = Bits::symbol(bits), far = Bits::far(bits);
    if (inside && (block.stored & kStoredNear) != 0) out[block.near() + at] = Bits::near(bits);
    if ((block.stored & kStoredFar) != 0) {
#pragma unroll
      for (int bit = 0; bit < Bits::kFarPlanes; ++bit) {
        write_plane(out + block.far(), step, Bits::kFarPlanes, bit, (far >> bit & 1) != 0);
      }
      if (Bits::kFarPlanes == 0 && inside) {
        out[block.far() + 2 * at] = static_cast<unsigned char>(far);
        out[block.far() + 2 * at + 1] = static_cast<unsigned char>(far >> 8);
      }
    }
    if (block.width == 0) continue;
    const int code = inside ? table.code(symbol, block.width) : 0;
    for (int bit = 0; bit < block.width; ++bit) {
      write_plane(out + block.codes(), step, block.width, bit, (code >> bit & 1) != 0);
    }
    const bool escaped = inside && code == block.escape();
    const unsigned mask = ballot(escaped);
    if (escaped) {
      out[block.symbols() + escapes + count_before(mask)] = static_cast<unsigned char>(symbol);
    }
    escapes += count_bits(mask);
  }
}

// Encodes after lossless_measure_kernel. Writes the length of the data into the header of `memory`.
template <class Bits>
__global__ void lossless_encode_kernel(unsigned char* memory, const typename Bits::Stored* source,
                                       Count count) {
  using Stored = typename Bits::Stored;
  unsigned char* const data = memory + kEncodedHeader;
  const Count blocks = lossless_blocks(count), whole = count * sizeof(Stored);
  each_block_of_team<kLosslessBlock>(count, [&](Count number, Count begin, int n) {
    const int lane = lane_of_thread();
    const auto* const lengths = reinterpret_cast<const unsigned short*>(data + whole);
    const LosslessSums sums = lossless_sums(lengths, blocks, number);
    const Count bytes = lossless_directory_end(count) + sums.all;
    const bool plain = bytes >= whole || bytes > 0xffffffff;
    if (number == 0 && lane == 0) {
      *reinterpret_cast<Count*>(memory) = plain ? whole : bytes;
      if (!plain) {
        *reinterpret_cast<LosslessHeader*>(data) = {kLosslessMark + Bits::kFormat,
                                                    static_cast<unsigned>(bytes), count};
      }
    }
    if (plain) return write_plain<Bits>(data + begin * sizeof(Stored), source + begin, n);
    if (lane == 0) {
      reinterpret_cast<unsigned short*>(data + sizeof(LosslessHeader))[number] = lengths[number];
    }
    SymbolTable table;
    const LosslessBlock<Bits> block = choose_coding<Bits>(table, source + begin, n);
    unsigned char* const out = data + lossless_directory_end(count) + sums.before;
    if (block.shrinks()) {
      write_block(out, source + begin, block, table);
    } else {
      write_plain<Bits>(out, source + begin, n);
    }
  });
}

// False for bytes that no encoder made; the target then has any values.
template <class Bits>
HETCOMM_FUNCTION bool read_block(typename Bits::Stored* target, const unsigned char* in, int length,
                                 int count) {
  if (length < kBlockHeader) return false;
  const LosslessBlock<Bits> block = {count, in[0], in[1], in[2] | in[3] << 8};
  if (block.width > kMostWidth || block.stored > (kStoredNear | kStoredFar)) return false;
  if (block.end() != length || (block.width == 0 && block.escapes != 0)) return false;
  const int lane = lane_of_thread();
  int escapes = 0;
  for (int step = 0; step < 2 * block.groups(); ++step) {
    const int at = step * kTeamThreads + lane;
    const bool inside = at < count;
    int code = 0, near = 0, far = 0;
    for (int bit = 0; bit < block.width; ++bit) {
      code |= read_plane(in + block.codes(), step, block.width, bit) << bit;
    }
    if (inside && (block.stored & kStoredNear) != 0) near = in[block.near() + at];
    if (Bits::kFar && (block.stored & kStoredFar) != 0) {
#pragma unroll
      for (int bit = 0; bit < Bits::kFarPlanes; ++bit) {
        far |= read_plane(in + block.far(), step, Bits::kFarPlanes, bit) << bit;
      }
      if (Bits::kFarPlanes == 0 && inside) {
        far = in[block.far() + 2 * at] | in[block.far() + 2 * at + 1] << 8;
      }
    }
    const bool escaped = inside && block.width != 0 && code == block.escape();
    const unsigned mask = ballot(escaped);
    const int place = escapes + count_before(mask);
    escapes += count_bits(mask);
    if (escapes > block.escapes) return false;
    if (!inside) continue;
    const int symbol = escaped ? in[block.symbols() + place] : in[kBlockHeader + code];
    target[at] = Bits::join(static_cast<unsigned char>(symbol), static_cast<unsigned char>(near),
                            static_cast<unsigned short>(far));
  }
  return escapes == block.escapes;
}

// Decodes what lossless_decode() of the host accepts. The rest gives NaNs: all elements if the
// lengths do not fit, otherwise those of the block.
template <class Bits>
__global__ void lossless_decode_kernel(typename Bits::Stored* target, const unsigned char* memory,
                                       Count count) {
  using Stored = typename Bits::Stored;
  const unsigned char* const data = memory + kEncodedHeader;
  const Count bytes = *reinterpret_cast<const Count*>(memory);
  const Count blocks = lossless_blocks(count), whole = count * sizeof(Stored);
  const Count directory_end = lossless_directory_end(count);
  each_block_of_team<kLosslessBlock>(count, [&](Count number, Count begin, int n) {
    if (bytes == whole) return read_plain<Bits>(target + begin, data + begin * sizeof(Stored), n);
    const auto* const header = reinterpret_cast<const LosslessHeader*>(data);
    const auto* const lengths =
        reinterpret_cast<const unsigned short*>(data + sizeof(LosslessHeader));
    const LosslessSums sums = lossless_sums(lengths, blocks, number);
    bool valid = bytes < whole && directory_end + sums.all == bytes && header->bytes == bytes &&
                 header->mark == kLosslessMark + Bits::kFormat && header->count == count;
    if (valid) {
      const unsigned char* const in = data + directory_end + sums.before;
      if (lengths[number] == n * sizeof(Stored)) return read_plain<Bits>(target + begin, in, n);
      valid = read_block<Bits>(target + begin, in, lengths[number], n);
    }
    if (valid) return;
    for (int at = lane_of_thread(); at < n; at += kTeamThreads) target[begin + at] = Bits::kNan;
  });
}
