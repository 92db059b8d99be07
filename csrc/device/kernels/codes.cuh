// The codes of lossy codecs. Blocks of 2048 elements follow one another; the last may be shorter. A
// block has a scale for each group, zeros up to a multiple of 16 bytes, and the codes. Scale is
// Float32 or Bfloat16. Codes without a scale come alone. A thread loads vectors of 16 bytes, and 32
// threads have a batch of elements at a time.

constexpr int kBlock = 2048;
constexpr int kBatch = 512;  // elements that 32 threads decode at a time

// device/quantise.h has the definition.
template <int bits>
struct IntegerCode {
  static constexpr int kBits = bits;
  static constexpr bool kScaled = true;
  static constexpr int kOfNan = 0;  // every code of a group whose scale is NaN
  HETCOMM_FUNCTION float scale(int greatest) { return Quantised<bits>::scale(greatest); }
  HETCOMM_FUNCTION float lift(float) { return 1; }
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
  // A power of two for value and scale, so that the rest of a division is no subnormal.
  HETCOMM_FUNCTION float lift(float scale) {
    return scale < 9.094947e-13f ? 1.8446744e19f : 1.0f;  // 2^-40, 2^64
  }
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
  HETCOMM_FUNCTION float lift(float) { return 1; }
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

// The low bytes of four numbers, the first one lowest.
HETCOMM_FUNCTION unsigned low_bytes(int a, int b, int c, int d) {
#ifdef HETCOMM_CUDA
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
#else
  return (a & 0xff) | (b & 0xff) << 8 | (c & 0xff) << 16 | static_cast<unsigned>(d) << 24;
#endif
}

// `lanes` codes, lowest first.
template <int bits, int lanes>
struct Codes {
  static constexpr int kBytes = lanes * bits / 8;
  Vector<unsigned, (kBytes + 3) / 4> words;

  // Of codes that may have bits above.
  HETCOMM_MEMBER void take(const int* code) {
    if constexpr (bits == 16) {
#pragma unroll
      for (int i = 0; i < lanes; i += 2) words.lane[i / 2] = (code[i] & 0xffff) | code[i + 1] << 16;
    } else if constexpr (bits == 8) {
#pragma unroll
      for (int i = 0; i < lanes; i += 4) {
        words.lane[i / 4] = low_bytes(code[i], code[i + 1], code[i + 2], code[i + 3]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < lanes; i += 8) {
        const int* const next = code + i + (lanes > 4 ? 4 : 0);  // of four codes the same again
        const unsigned even = low_bytes(code[i], code[i + 2], next[0], next[2]);
        const unsigned odd = low_bytes(code[i + 1], code[i + 3], next[1], next[3]);
        words.lane[i / 8] = (even & 0x0f0f0f0fu) | (odd << 4 & 0xf0f0f0f0u);
      }
    }
  }
  HETCOMM_MEMBER int code(int lane) const {  // with bits above
    return static_cast<int>(words.lane[lane * bits / 32] >> lane * bits % 32);
  }

  // The codes of the first `count` elements.
  HETCOMM_MEMBER void load(const unsigned char* from, int count) {
    words = {};
    if (count < lanes) {
#pragma unroll
      for (int i = 0; i < kBytes; ++i) {
        if (i * 8 / bits < count) words.lane[i / 4] |= static_cast<unsigned>(from[i]) << i % 4 * 8;
      }
    } else if constexpr (kBytes == 2) {
      words.lane[0] = *reinterpret_cast<const unsigned short*>(from);
    } else {
      words = *reinterpret_cast<const decltype(words)*>(from);
    }
  }
  HETCOMM_MEMBER void store(unsigned char* to, int count) const {
    if (count < lanes) {
#pragma unroll
      for (int i = 0; i < kBytes; ++i) {
        if (i * 8 / bits < count)
          to[i] = static_cast<unsigned char>(words.lane[i / 4] >> i % 4 * 8);
      }
    } else if constexpr (kBytes == 2) {
      *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(words.lane[0]);
    } else {
      *reinterpret_cast<decltype(Codes::words)*>(to) = words;
    }
  }
};

// A vector of elements of 16 or 32 bits.
template <class T>
struct Elements {
  using Stored = typename T::Stored;
  static constexpr int kLanes = kVectorBytes / sizeof(Stored);
  static constexpr int kBits = 8 * sizeof(Stored);
  Vector<unsigned, 4> words;

  HETCOMM_MEMBER float value(int lane) const {
    const unsigned word = words.lane[lane * kBits / 32];
    if constexpr (kBits == 32)
      return bit_cast<float>(word);
    else
      return T::widen(static_cast<Stored>(word >> lane * kBits % 32));
  }
  HETCOMM_MEMBER void take(const float* value) {
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) put(lane, T::round(value[lane]));
  }

  // The first `count` elements, then zeros.
  HETCOMM_MEMBER void load(const Stored* from, int count, bool aligned) {
    if (aligned && count >= kLanes) {
      words = *reinterpret_cast<const decltype(words)*>(from);
    } else {
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) put(lane, lane < count ? from[lane] : Stored());
    }
  }
  HETCOMM_MEMBER void store(Stored* to, int count, bool aligned) const {
    if (aligned && count >= kLanes) {
      *reinterpret_cast<decltype(Elements::words)*>(to) = words;
    } else {
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        const unsigned word = words.lane[lane * kBits / 32];
        if (lane >= count) continue;
        if constexpr (kBits == 32)
          to[lane] = bit_cast<float>(word);
        else
          to[lane] = static_cast<Stored>(word >> lane * kBits % 32);
      }
    }
  }

 private:
  HETCOMM_MEMBER void put(int lane, Stored stored) {
    if constexpr (kBits == 32) {
      words.lane[lane] = bit_cast<unsigned>(stored);
    } else {
      unsigned& word = words.lane[lane / 2];
      word = lane % 2 == 0 ? stored : word | static_cast<unsigned>(stored) << 16;
    }
  }
};

// The bits of the greatest magnitude of vectors, with infinity and NaN last, as a float32.
template <class T, int vectors>
HETCOMM_FUNCTION int greatest_magnitude(const Elements<T>* vector) {
  int greatest = 0;
#ifdef HETCOMM_CUDA_FLOAT8
  constexpr bool kInPairs = Elements<T>::kBits == 16;
  if constexpr (kInPairs) {  // bits order like magnitudes
    unsigned both = 0;
#pragma unroll
    for (int i = 0; i < 4 * vectors; ++i) {
      both = __vmaxu2(both, vector[i / 4].words.lane[i % 4] & 0x7fff7fffu);
    }
    const unsigned low = both & 0xffff, high = both >> 16;
    greatest = bit_cast<int>(T::widen(static_cast<unsigned short>(low > high ? low : high)));
  }
#else
  constexpr bool kInPairs = false;
#endif
#pragma unroll
  for (int i = 0; i < (kInPairs ? 0 : vectors * Elements<T>::kLanes); ++i) {
    const float value = vector[i / Elements<T>::kLanes].value(i % Elements<T>::kLanes);
    const int magnitude = bit_cast<int>(value) & 0x7fffffff;
    greatest = magnitude > greatest ? magnitude : greatest;
  }
  return greatest;
}

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

// The neighbouring threads that encode a group.
HETCOMM_FUNCTION constexpr int team_of(int group) {
  return group < 64 ? 4 : group < 512 ? group / 16 : 32;
}

// Encodes source + residual; the residual then has what was lost. Without feedback there is no
// residual. `encoded` is a multiple of 16. `aligned`: vectors of source and residual are, too. A
// team has a group, and a thread 8 elements or more.
template <class T, class Code, class Scale, int group, bool feedback>
__global__ void encode_kernel(unsigned char* encoded, const typename T::Stored* source,
                              float* residual, Count count, int aligned) {
  using Pack = Elements<T>;
  constexpr int kLanes = Pack::kLanes;
  constexpr int kTeam = team_of(group);
  constexpr int kElements = 32 / kTeam * group;  // of 32 threads, in one block
  constexpr int kRow = kTeam * kLanes;
  constexpr int kSteps = group / kRow;
  constexpr int kFloats = sizeof(float) * kLanes / kVectorBytes;  // vectors of a residual
  const int member = lane_of_thread() % kTeam * kLanes;
  for (Count batch = first_index() / 32 * kElements; batch < count;
       batch += all_threads() / 32 * kElements) {
    const Count begin = batch + lane_of_thread() / kTeam * group;
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
    float scale = 1, lift = 1, inverse = 1;
    if constexpr (Code::kScaled) {
      int greatest = 0;
      if constexpr (feedback)
        greatest = greatest_magnitude<Float32, kSteps * kFloats>(sums);
      else
        greatest = greatest_magnitude<T, kSteps>(pack);
      greatest = greatest_of_team<kTeam>(greatest);
      const auto stored = Scale::round_up(Code::scale(greatest));
      const int own = within / group;
      if (member == 0 && own < block.scales) {
        constexpr int kAligned = 16 / sizeof stored;
        auto* scales = reinterpret_cast<typename Scale::Stored*>(data);
        scales[own] = stored;
        for (int i = own + 1; i >= block.scales && i % kAligned != 0; ++i) scales[i] = 0;
      }
      scale = Scale::widen(stored);
      lift = Code::lift(scale);
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
  constexpr int kRow = 32 * kLanes;
  constexpr int kSteps = kBatch / kRow;
  const int member = lane_of_thread() * kLanes;
  for (Count begin = first_index() / 32 * kBatch; begin < count;
       begin += all_threads() / 32 * kBatch) {
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
