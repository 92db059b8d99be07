// The codes of lossy codecs. Blocks of 2048 elements follow one another; the last may be shorter. A
// block has a scale for each group, zeros up to a multiple of 16 bytes, and the codes. Scale is
// Float32 or Bfloat16. Codes without a scale come alone. A team of at most 32 neighbouring threads
// of one warp or wavefront encodes a group. Each thread holds vectors of 16 bytes of the group.
// Decoding is element-wise.

constexpr int kBlock = 2048;

// device/quantise.h has the definition.
template <int bits>
struct IntegerCode {
  static constexpr int kBits = bits;
  static constexpr bool kScaled = true;
  HETCOMM_FUNCTION float scale(int greatest) { return Quantised<bits>::scale(greatest); }
  HETCOMM_FUNCTION int code(float value, float scale, float inverse) {
    // The rounded quotient, in one step from the rounded inverse (Markstein). Of 1.5e9 quotients at
    // and next to ties none differed from the result of a division.
    const float estimate = value * inverse;
    const float rest = fmaf(-estimate, scale, value);
    return Quantised<bits>::nearest(fmaf(rest, inverse, estimate));
  }
  HETCOMM_FUNCTION float value(int code) {  // shifted to the top and back, which repeats the sign
    return static_cast<float>(static_cast<int>(static_cast<unsigned>(code) << (32 - bits)) >>
                              (32 - bits));
  }
};

// codec/scaled_codec.cc has the definition.
template <class Number, int most>
struct ScaledCode {
  static constexpr int kBits = 8;
  static constexpr bool kScaled = true;
  HETCOMM_FUNCTION float scale(int greatest) { return Scaled<Number, most>::scale(greatest); }
  HETCOMM_FUNCTION int code(float value, float scale, float) {
    const int nearest = Scaled<Number, most>::nearest(value / scale);
    return select(scale == scale, nearest, Number::Format::kNan);
  }
  HETCOMM_FUNCTION float value(int code) { return Number::widen(code & 0xff); }
};

template <class Number>
struct CastCode {
  static constexpr int kBits = 16;
  static constexpr bool kScaled = false;
  HETCOMM_FUNCTION float scale(int) { return 1; }
  HETCOMM_FUNCTION int code(float value, float, float) { return Number::round(value); }
  HETCOMM_FUNCTION float value(int code) { return Number::widen(code & 0xffff); }
};

// As device/device_format.h names them.
struct Int8 : IntegerCode<8> {};
struct Int4 : IntegerCode<4> {};
struct Fp8E4m3 : ScaledCode<Byte<4, 3, false>, 448> {};
struct Fp8E5m2 : ScaledCode<Byte<5, 2, true>, 57344> {};
struct Bf16 : CastCode<Bfloat16> {};
struct Fp16 : CastCode<Float16> {};

// `lanes` codes in their bytes, lowest first.
template <int bits, int lanes>
struct Codes {
  static constexpr int kBytes = lanes * bits / 8;
  Vector<unsigned char, kBytes> bytes;

  HETCOMM_FUNCTION unsigned char byte(const int* codes, int index) {
    if constexpr (bits == 4) {
      return static_cast<unsigned char>((codes[2 * index] & 15) | codes[2 * index + 1] << 4);
    } else {
      constexpr int kEach = bits / 8;
      return static_cast<unsigned char>(codes[index / kEach] >> 8 * (index % kEach));
    }
  }
  HETCOMM_FUNCTION int code(const unsigned char* bytes, int index) {
    if constexpr (bits == 4) return bytes[index / 2] >> 4 * (index % 2) & 15;
    if constexpr (bits == 8) return bytes[index];
    return bytes[2 * index] | bytes[2 * index + 1] << 8;
  }
};

// Where the block of an element begins, in elements and in bytes, and what lies in the block.
struct Block {
  Count first;
  Count offset;
  int count;   // elements
  int scales;  // groups that have a scale
  int codes;   // bytes before the codes
};

template <class Code, class Scale, int group>
HETCOMM_FUNCTION Block block_of(Count element, Count count) {
  const auto scales_of = [](int elements) {
    return Code::kScaled ? (elements + group - 1) / group : 0;
  };
  const auto codes_after = [](int scales) {
    return (scales * static_cast<int>(sizeof(typename Scale::Stored)) + 15) / 16 * 16;
  };
  Block block;
  block.first = element / kBlock * kBlock;
  const int bytes = codes_after(scales_of(kBlock)) + kBlock / 8 * Code::kBits;
  block.offset = element / kBlock * bytes;
  block.count = count - block.first < kBlock ? static_cast<int>(count - block.first) : kBlock;
  block.scales = scales_of(block.count);
  block.codes = codes_after(block.scales);
  return block;
}

// Encodes source + residual; the residual then has what was lost. The residual may be null.
// `encoded` is a multiple of 16. `aligned`: vectors of source and residual are, too. The grid has
// at most one team for every group. All threads of a warp make the same number of rounds.
template <class T, class Code, class Scale, int group>
__global__ void encode_kernel(unsigned char* encoded, const typename T::Stored* source,
                              float* residual, Count count, int aligned) {
  using Stored = typename T::Stored;
  constexpr int kLanes = kVectorBytes / sizeof(Stored);
  constexpr int kTeam = group / kLanes < 32 ? group / kLanes : 32;
  constexpr int kSteps = group / (kTeam * kLanes);
  using Pack = Vector<Stored, kLanes>;
  using Floats = Vector<float, kLanes>;
  using Out = Codes<Code::kBits, kLanes>;
  const Count groups = (count + group - 1) / group;
  const int member = threadIdx.x % kTeam;
  for (Count round = first_index() / 32 * (32 / kTeam); round < groups;
       round += all_threads() / kTeam) {
    const Count index = round + threadIdx.x % 32 / kTeam;
    const Count begin = index * group;
    const bool whole = aligned && begin + group <= count;
    float values[kSteps][kLanes];
    int greatest = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const Count at = begin + (step * kTeam + member) * kLanes;
      Pack pack = {};
      Floats kept = {};
      if (whole) {
        pack = *reinterpret_cast<const Pack*>(source + at);
        if (residual != nullptr) kept = *reinterpret_cast<const Floats*>(residual + at);
      } else {
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
          if (at + lane >= count) continue;
          pack.lane[lane] = source[at + lane];
          if (residual != nullptr) kept.lane[lane] = residual[at + lane];
        }
      }
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        float value = T::widen(pack.lane[lane]);
        if (residual != nullptr) value = canonical(value + kept.lane[lane]);
        values[step][lane] = value;
        const int magnitude = bit_cast<int>(value) & 0x7fffffff;
        greatest = magnitude > greatest ? magnitude : greatest;
      }
    }
    if constexpr (Code::kScaled) {
#pragma unroll
      for (int mask = kTeam / 2; mask > 0; mask /= 2) {
        const int other = exchanged(greatest, mask);
        greatest = other > greatest ? other : greatest;
      }
    }
    if (index >= groups) continue;
    const auto stored = Scale::round_up(Code::scale(greatest));
    const float scale = Scale::widen(stored);
    const float inverse = 1.0f / scale;
    const Block block = block_of<Code, Scale, group>(begin, count);
    if (Code::kScaled && member == 0) {
      constexpr int kAligned = 16 / sizeof stored;
      auto* scales = reinterpret_cast<typename Scale::Stored*>(encoded + block.offset);
      const int own = static_cast<int>(begin - block.first) / group;
      scales[own] = stored;
      for (int i = own + 1; i >= block.scales && i % kAligned != 0; ++i) scales[i] = 0;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const Count at = begin + (step * kTeam + member) * kLanes;
      int code[kLanes];
      Floats lost;
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        const float value = values[step][lane];
        code[lane] = Code::code(value, scale, inverse);
        const float decoded = Code::value(code[lane]);
        const float difference = value - (Code::kScaled ? decoded * scale : decoded);
        const bool finite = (bit_cast<int>(difference) & 0x7fffffff) < 0x7f800000;
        lost.lane[lane] = finite ? difference : 0;
      }
      Out out;
#pragma unroll
      for (int i = 0; i < Out::kBytes; ++i) out.bytes.lane[i] = Out::byte(code, i);
      unsigned char* place =
          encoded + block.offset + block.codes + (at - block.first) * Code::kBits / 8;
      if (at + kLanes <= count) {
        *reinterpret_cast<decltype(out.bytes)*>(place) = out.bytes;
      } else {
#pragma unroll
        for (int i = 0; i < Out::kBytes; ++i) {
          if (at + i * 8 / Code::kBits < count) place[i] = out.bytes.lane[i];
        }
      }
      if (residual == nullptr) continue;
      if (whole) {
        *reinterpret_cast<Floats*>(residual + at) = lost;
      } else {
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
          if (at + lane < count) residual[at + lane] = lost.lane[lane];
        }
      }
    }
  }
}

// target[i] = (first[i] +) the sum of the sources, in their order, in float32, rounded once.
// Sources are multiples of 16. Vectors as in reduce.cuh, without a head.
template <class T, class Code, class Scale, int group>
__global__ void decode_kernel(typename T::Stored* target, const typename T::Stored* first,
                              const Sources sources, int source_count, Count count, int aligned) {
  using Stored = typename T::Stored;
  constexpr int kLanes = kVectorBytes / sizeof(Stored);
  using Pack = Vector<Stored, kLanes>;
  using In = Codes<Code::kBits, kLanes>;
  for (Count vector = first_index(); vector * kLanes < count; vector += all_threads()) {
    const Count at = vector * kLanes;
    const bool whole = at + kLanes <= count;
    const Block block = block_of<Code, Scale, group>(at, count);
    const int within = static_cast<int>(at - block.first);
    Pack pack = {};
    if (first != nullptr) {
      if (whole && aligned) {
        pack = *reinterpret_cast<const Pack*>(first + at);
      } else {
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
          if (at + lane < count) pack.lane[lane] = first[at + lane];
        }
      }
    }
    float sum[kLanes];
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) sum[lane] = T::widen(pack.lane[lane]);
    for (int s = 0; s < source_count; ++s) {
      const unsigned char* data = static_cast<const unsigned char*>(sources.at[s]) + block.offset;
      float scale = 1;
      if (Code::kScaled) {
        scale = Scale::widen(reinterpret_cast<const typename Scale::Stored*>(data)[within / group]);
      }
      const unsigned char* place = data + block.codes + within * Code::kBits / 8;
      In in = {};
      if (whole) {
        in.bytes = *reinterpret_cast<const decltype(in.bytes)*>(place);
      } else {
#pragma unroll
        for (int i = 0; i < In::kBytes; ++i) {
          if (at + i * 8 / Code::kBits < count) in.bytes.lane[i] = place[i];
        }
      }
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        const float decoded = Code::value(In::code(in.bytes.lane, lane));
        const float value = Code::kScaled ? decoded * scale : decoded;
        sum[lane] = s == 0 && first == nullptr ? value : sum[lane] + value;
      }
    }
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) pack.lane[lane] = T::round(sum[lane]);
    if (whole && aligned) {
      *reinterpret_cast<Pack*>(target + at) = pack;
    } else {
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        if (at + lane < count) target[at + lane] = pack.lane[lane];
      }
    }
  }
}
