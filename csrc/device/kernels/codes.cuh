// The codes of lossy codecs. Blocks of 2048 elements follow one another; the last may be shorter. A
// block has a scale for each group, zeros up to a multiple of 16 bytes, and the codes. Scale is
// Float32 or Bfloat16. Codes without a scale come alone. A team has elements of one block at a
// time, and a thread loads vectors of 16 bytes.

constexpr int kBlock = 2048;
constexpr int kBatch = 512;  // elements that a team decodes at a time

// device/quantise.h has the definition.
template <int bits>
struct IntegerCode {
  static constexpr int kBits = bits;
  static constexpr bool kScaled = true;
  static constexpr int kOfNan = 0;  // every code of a group whose scale is NaN
  HETCOMM_FUNCTION float scale(int greatest) { return Quantised<bits>::scale(greatest); }
  HETCOMM_FUNCTION int code(float value, float scale, float inverse) {  // and bits above the code
    return Quantised<bits>::with_nearest(quotient_of(value, scale, inverse));
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
  static constexpr int kOfNan = Number::Format::kNan;
  HETCOMM_FUNCTION float scale(int greatest) { return Scaled<Number, most>::scale(greatest); }
  HETCOMM_FUNCTION int code(float value, float scale, float inverse) {
    return Scaled<Number, most>::nearest(quotient_of(value, scale, inverse));
  }
  HETCOMM_FUNCTION float value(int code) { return Number::widen(code & 0xff); }
};

template <class Number>
struct CastCode {
  static constexpr int kBits = 16;
  static constexpr bool kScaled = false;
  static constexpr int kOfNan = 0;
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

// The threads of a team that encode a group.
HETCOMM_FUNCTION constexpr int members_of(int group) {
  return group < 64 ? 4 : group < 512 ? group / 16 : kTeamThreads;
}

// Encodes source + residual; the residual then has what was lost. Without feedback there is no
// residual. `encoded` is a multiple of 16. `aligned`: vectors of source and residual are, too. A
// team has one group or several, and a thread 8 to 64 elements of one.
template <class T, class Code, class Scale, int group, bool feedback>
__global__ void encode_kernel(unsigned char* encoded, const typename T::Stored* source,
                              float* residual, Count count, int aligned) {
  using Pack = Elements<T>;
  constexpr int kLanes = Pack::kLanes;
  constexpr int kMembers = members_of(group);
  constexpr int kElements = kTeamThreads / kMembers * group;  // of a team, in one block
  constexpr int kRow = kMembers * kLanes;
  constexpr int kSteps = group / kRow;
  constexpr int kFloats = sizeof(float) * kLanes / kVectorBytes;  // vectors of a residual
  const int member = lane_of_thread() % kMembers * kLanes;
  for (Count batch = first_index() / kTeamThreads * kElements; batch < count;
       batch += all_threads() / kTeamThreads * kElements) {
    const Count begin = batch + lane_of_thread() / kMembers * group;
    const Block block = block_of<Code, Scale, group>(batch, count);
    const int within = static_cast<int>(begin - block.first);
    const Count rest_of_all = begin < count ? count - begin : 0;
    const int left = rest_of_all < group ? static_cast<int>(rest_of_all) : group;
    Pack pack[kSteps];
    Elements<Float32> sums[feedback ? kSteps * kFloats : 1];
    const typename T::Stored* const from = source + begin + member;
    float* const kept = residual + begin + member;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int rest = left - member - step * kRow;
      pack[step].load(from + step * kRow, rest, aligned);
      if constexpr (feedback) {
#pragma unroll
        for (int i = 0; i < kFloats; ++i) {
          sums[step * kFloats + i].load(kept + step * kRow + 4 * i, rest - 4 * i, aligned);
        }
      }
    }
    if constexpr (feedback) {
#pragma unroll
      for (int i = 0; i < kSteps * kFloats; ++i) {
        float sum[4];
#pragma unroll
        for (int lane = 0; lane < 4; ++lane) {
          const float value = pack[i / kFloats].value(i % kFloats * 4 + lane);
          sum[lane] = value + sums[i].value(lane);
        }
        sums[i].take(sum);
      }
    }
    const auto value = [&](int step, int lane) {
      if constexpr (feedback)
        return sums[step * kFloats + lane / 4].value(lane % 4);
      else
        return pack[step].value(lane);
    };
    unsigned char* const data = encoded + block.offset;
    float scale = 1, inverse = 1;
    float lift = 1;  // of values and scale, so that the rest of no division is a subnormal
    if constexpr (Code::kScaled) {
      int greatest = 0;
      if constexpr (feedback)
        greatest = greatest_magnitude<Float32, kSteps * kFloats>(sums);
      else
        greatest = greatest_magnitude<T, kSteps>(pack);
      greatest = greatest_of<kMembers>(greatest);
      const auto stored = Scale::round_up(Code::scale(greatest));
      const int own = within / group;
      if (member == 0 && own < block.scales) {
        constexpr int kAligned = 16 / sizeof stored;
        auto* scales = reinterpret_cast<typename Scale::Stored*>(data);
        scales[own] = stored;
        for (int i = own + 1; i >= block.scales && i % kAligned != 0; ++i) scales[i] = 0;
      }
      scale = Scale::widen(stored);
      lift = scale < 9.094947e-13f ? 1.8446744e19f : 1.0f;  // 2^-40, 2^64
      inverse = 1.0f / (scale * lift);
    }
    unsigned char* const codes = data + block.codes + (within + member) * Code::kBits / 8;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      int code[kLanes];
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        code[lane] = Code::code(value(step, lane) * lift, scale * lift, inverse);
      }
      const int rest = left - member - step * kRow;
      if constexpr (feedback) {
#pragma unroll
        for (int i = 0; i < kFloats; ++i) {
          float lost[4];
#pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float decoded = Code::value(code[4 * i + lane]);
            const float nearest = Code::kScaled ? decoded * scale : decoded;
            const float difference = value(step, 4 * i + lane) - nearest;
            const bool finite = (bit_cast<int>(difference) & 0x7fffffff) < 0x7f800000;
            lost[lane] = finite ? difference : 0;
          }
          Elements<Float32> rounded;
          rounded.take(lost);
          rounded.store(kept + step * kRow + 4 * i, rest - 4 * i, aligned);
        }
      }
      Codes<Code::kBits, kLanes> out;
      out.take(code);
#pragma unroll
      for (unsigned& word : out.words.lane)
        word = scale == scale ? word : Code::kOfNan * 0x1010101u;
      out.store(codes + step * kRow * Code::kBits / 8, rest);
    }
  }
}

// target[i] = (first[i] +) the sum of the sources, in their order, in float32, rounded once.
// Sources are multiples of 16. `aligned`: vectors of target and first are, too.
template <class T, class Code, class Scale, int group>
__global__ void decode_kernel(typename T::Stored* target, const typename T::Stored* first,
                              const Sources sources, int source_count, Count count, int aligned) {
  using Pack = Elements<T>;
  constexpr int kLanes = Pack::kLanes;
  constexpr int kRow = kTeamThreads * kLanes;
  constexpr int kSteps = kBatch / kRow;
  const int member = lane_of_thread() * kLanes;
  for (Count begin = first_index() / kTeamThreads * kBatch; begin < count;
       begin += all_threads() / kTeamThreads * kBatch) {
    const Block block = block_of<Code, Scale, group>(begin, count);
    const int within = static_cast<int>(begin - block.first) + member;
    const int left = (count - begin < kBatch ? static_cast<int>(count - begin) : kBatch) - member;
    float sum[kSteps][kLanes];
    if (first != nullptr) {
      Pack pack[kSteps];
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        pack[step].load(first + begin + member + step * kRow, left - step * kRow, aligned);
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) sum[step][lane] = pack[step].value(lane);
      }
    }
    for (int s = 0; s < source_count; ++s) {
      const unsigned char* data = static_cast<const unsigned char*>(sources.at[s]) + block.offset;
      const unsigned char* codes = data + block.codes + within * Code::kBits / 8;
      const auto* scales = reinterpret_cast<const typename Scale::Stored*>(data);
      Codes<Code::kBits, kLanes> in[kSteps];
      float scale[kSteps];
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        in[step].load(codes + step * kRow * Code::kBits / 8, left - step * kRow);
        scale[step] = 1;
        if (Code::kScaled && left > step * kRow) {
          scale[step] = Scale::widen(scales[(within + step * kRow) / group]);
        }
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
          const float decoded = Code::value(in[step].code(lane));
          const float value = Code::kScaled ? decoded * scale[step] : decoded;
          sum[step][lane] = s == 0 && first == nullptr ? value : sum[step][lane] + value;
        }
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      Pack pack;
      pack.take(sum[step]);
      pack.store(target + begin + member + step * kRow, left - step * kRow, aligned);
    }
  }
}
