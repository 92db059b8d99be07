// Vectors of codes and of elements, as words of a thread.

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
  static_assert(kBits == 16 || kBits == 32);
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
#ifdef HETCOMM_HOPPER
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
