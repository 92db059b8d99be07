// How numbers are read, rounded and quantised. One text for nvcc, NVRTC, hipcc, hipRTC and the host
// compiler. It includes nothing, because the run-time compilers may have no headers. Compiled
// without contraction of a * b + c, so that all compilers give the same bits.

#if defined(__HIPCC__) || defined(__HIPCC_RTC__)
#define HETCOMM_HIP
#elif defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define HETCOMM_CUDA
#else
#define HETCOMM_HOST
#endif

#ifdef HETCOMM_HOST
#define HETCOMM_MEMBER inline __attribute__((always_inline))
#else
#define HETCOMM_MEMBER __device__ __forceinline__
#endif
#define HETCOMM_FUNCTION static HETCOMM_MEMBER

template <class To, class From>
HETCOMM_FUNCTION To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "a value of the same size");
#ifdef HETCOMM_CUDA
  To to;
  memcpy(&to, &from, sizeof(To));  // NVRTC 11.8 has no __builtin_bit_cast
  return to;
#else
  return __builtin_bit_cast(To, from);
#endif
}

HETCOMM_FUNCTION int select(bool condition, int yes, int no) {
#ifdef HETCOMM_HOST
  return no ^ ((yes ^ no) & -static_cast<int>(condition));  // GCC makes branches of ?:
#else
  return condition ? yes : no;
#endif
}

#ifdef HETCOMM_CUDA
#if __CUDA_ARCH__ >= 900  // which converts 8-bit floats, and takes a maximum of 16-bit numbers
#define HETCOMM_HOPPER
#endif
HETCOMM_FUNCTION float widen_float16(unsigned short stored) {
  float wide;  // by an instruction: without a header the language has no such type
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(stored));
  return wide;
}
#endif

// A float of `exponent` and `fraction` bits below the sign, in the low bits of an int, to and from
// float32. Neither direction uses float32 subnormals, because a thread may flush them to zero.
// Formats with infinities follow IEEE. The format without (e4m3) has NaN as its greatest magnitude
// only. Rounds to nearest even. Too large values become infinity, or the greatest number if the
// format has no infinity.
template <int exponent, int fraction, bool infinities>
struct Narrow {
  static constexpr int kShift = 23 - fraction;
  static constexpr int kBias = (1 << (exponent - 1)) - 1;
  static constexpr int kRebias = (127 - kBias) << 23;
  static constexpr int kSign = 1 << (exponent + fraction);
  static constexpr int kInfinity = ((1 << exponent) - 1) << fraction;
  static constexpr int kNan = infinities ? kInfinity | 1 << (fraction - 1) : kSign - 1;
  static constexpr int kLeastNormal = (128 - kBias) << 23;  // as the bits of a float32

  HETCOMM_FUNCTION float widen(int bits) {
#ifdef HETCOMM_CUDA
    if constexpr (exponent == 5 && fraction == 2 && infinities) {  // the upper byte of a float16
      return widen_float16(static_cast<unsigned short>(bits << 8));
    }
#endif
#ifdef HETCOMM_HOPPER
    if constexpr (exponent == 4 && fraction == 3 && !infinities) {
      unsigned both;
      asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(both) : "h"(static_cast<unsigned short>(bits)));
      return widen_float16(static_cast<unsigned short>(both));
    }
#endif
    const int magnitude = (bits & (kSign - 1)) << kShift;
    int wide = magnitude + kRebias;
    if (infinities) {
      wide = select((bits & (kSign - 1)) >= kInfinity, wide + kRebias, wide);
    } else {
      wide = select((bits & (kSign - 1)) == kNan, 0x7fc00000, wide);
    }
    // A subnormal's digits with an implicit one, which the subtraction removes.
    const float digits = bit_cast<float>(magnitude + kRebias + (1 << 23));
    const float subnormal = digits - bit_cast<float>(kLeastNormal);
    wide = select(magnitude < 1 << 23, bit_cast<int>(subnormal), wide);
    return bit_cast<float>(wide | (bits & kSign) << (31 - exponent - fraction));
  }

  // Without the sign, of a magnitude that does not round to more than the greatest number.
  HETCOMM_FUNCTION int round_magnitude(int magnitude) {
    const int odd = magnitude >> kShift & 1;
    const int normal = (magnitude - kRebias + (1 << (kShift - 1)) - 1 + odd) >> kShift;
    // Next to this number the spacing of float32 is that of the subnormals, so the addition rounds.
    constexpr int kBeside = kLeastNormal + (kShift << 23);
    const float shifted = bit_cast<float>(magnitude) + bit_cast<float>(kBeside);
    return select(magnitude < kLeastNormal, bit_cast<int>(shifted) - kBeside, normal);
  }

  // Of a finite number that does not round to more than the greatest number.
  HETCOMM_FUNCTION int round_within(float value) {
#ifdef HETCOMM_HOPPER
    if constexpr (exponent + fraction == 7) return converted(value);
#endif
    const int bits = bit_cast<int>(value);
    return round_magnitude(bits & 0x7fffffff) | (bits >> (31 - exponent - fraction) & kSign);
  }

  HETCOMM_FUNCTION int round(float value) {
#ifdef HETCOMM_HOPPER
    if constexpr (exponent == 4 && fraction == 3 && !infinities) return converted(value);
#endif
    const int bits = bit_cast<int>(value);
    const int magnitude = bits & 0x7fffffff;
    int rounded = round_magnitude(magnitude);
    constexpr int kTooLarge = infinities ? kInfinity : kNan - 1;
    rounded = select(magnitude >= 0x7f800000 || rounded > kTooLarge, kTooLarge, rounded);
    rounded = select(magnitude > 0x7f800000, kNan, rounded);
    const int sign = bits >> (31 - exponent - fraction) & kSign;
    return rounded | select(rounded == kNan, 0, sign);
  }

#ifdef HETCOMM_HOPPER
  // Too large values become the greatest number.
  HETCOMM_FUNCTION int converted(float value) {
    unsigned short both;
    if constexpr (infinities) {
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(value));
    } else {
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(value));
    }
    return both;
  }
#endif
};

// Replaces a NaN by the one quiet NaN of all results.
HETCOMM_FUNCTION float canonical(float value) {
  return bit_cast<float>(select(value != value, 0x7fc00000, bit_cast<int>(value)));
}
HETCOMM_FUNCTION double canonical(double value) {
  return value != value ? bit_cast<double>(0x7ff8000000000000ll) : value;
}

// A float32 that rounds to fewer digits like the double: lost digits set its last bit.
HETCOMM_FUNCTION float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  const double magnitude = value < 0 ? -value : value;
  const double near_magnitude = back < 0 ? -back : back;
  const int bits = bit_cast<int>(nearest);
  const int toward_zero = bits - static_cast<int>(near_magnitude > magnitude);
  const bool inexact = near_magnitude > magnitude || near_magnitude < magnitude;
  return bit_cast<float>(select(inexact, toward_zero | 1, bits));
}

// Storage formats, named by the lines of base/dtype.h. Stored is the type in memory, Wide the type
// of the arithmetic, Modular a type in which sums and products may wrap.
struct Float32 {
  using Stored = float;
  using Wide = float;
  using Modular = Wide;
  HETCOMM_FUNCTION Wide widen(Stored stored) { return stored; }
  HETCOMM_FUNCTION Stored round(float value) { return canonical(value); }
  HETCOMM_FUNCTION Stored round(double value) { return canonical(static_cast<float>(value)); }
  // Of a positive number or the quiet NaN, as scales of groups are.
  HETCOMM_FUNCTION Stored round_up(float value) { return value; }
};

struct Float64 {
  using Stored = double;
  using Wide = double;
  using Modular = Wide;
  HETCOMM_FUNCTION Wide widen(Stored stored) { return stored; }
  HETCOMM_FUNCTION Stored round(double value) { return canonical(value); }
};

struct Bfloat16 {
  using Stored = unsigned short;
  using Wide = float;
  using Modular = Wide;
  HETCOMM_FUNCTION Wide widen(Stored stored) {
    return bit_cast<float>(static_cast<unsigned>(stored) << 16);
  }
  HETCOMM_FUNCTION Stored round(float value) {
#if defined(HETCOMM_CUDA) && __CUDA_ARCH__ >= 800
    Stored stored;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(stored) : "f"(value));
    return value != value ? 0x7fc0 : stored;
#else
    const unsigned bits = bit_cast<unsigned>(canonical(value));
    return static_cast<Stored>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
  }
  HETCOMM_FUNCTION Stored round(double value) { return round(round_to_odd(value)); }
  // As Float32::round_up(), of a number whose bfloat16 is finite.
  HETCOMM_FUNCTION Stored round_up(float value) {
    return static_cast<Stored>((bit_cast<unsigned>(value) + 0xffff) >> 16);
  }
};

struct Float16 {
  using Stored = unsigned short;
  using Wide = float;
  using Modular = Wide;
#if defined(HETCOMM_CUDA)
  HETCOMM_FUNCTION Wide widen(Stored stored) { return widen_float16(stored); }
  HETCOMM_FUNCTION Stored round(float value) {
    Stored stored;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(stored) : "f"(value));
    return value != value ? 0x7e00 : stored;
  }
#elif defined(HETCOMM_HIP)
  HETCOMM_FUNCTION Wide widen(Stored stored) {
    return static_cast<float>(bit_cast<_Float16>(stored));
  }
  HETCOMM_FUNCTION Stored round(float value) {
    const Stored stored = bit_cast<Stored>(static_cast<_Float16>(value));
    return value != value ? 0x7e00 : stored;
  }
#else
  HETCOMM_FUNCTION Wide widen(Stored stored) { return Narrow<5, 10, true>::widen(stored); }
  HETCOMM_FUNCTION Stored round(float value) {
    return static_cast<Stored>(Narrow<5, 10, true>::round(value));
  }
#endif
  HETCOMM_FUNCTION Stored round(double value) { return round(round_to_odd(value)); }
};

template <int exponent, int fraction, bool infinities>
struct Byte {
  using Stored = unsigned char;
  using Wide = float;
  using Modular = Wide;
  using Format = Narrow<exponent, fraction, infinities>;
  HETCOMM_FUNCTION Wide widen(Stored stored) { return Format::widen(stored); }
  HETCOMM_FUNCTION Stored round(float value) { return static_cast<Stored>(Format::round(value)); }
  HETCOMM_FUNCTION Stored round(double value) { return round(round_to_odd(value)); }
};

template <class T, class M>
struct Integer {
  using Stored = T;
  using Wide = T;
  using Modular = M;
  HETCOMM_FUNCTION Wide widen(Stored stored) { return stored; }
  HETCOMM_FUNCTION Stored round(Wide value) { return value; }
};
struct Boolean : Integer<unsigned char, unsigned> {
  HETCOMM_FUNCTION Wide widen(Stored stored) { return stored != 0; }
};

struct Moved {};  // without arithmetic

#ifndef HETCOMM_HOST
// One step of Markstein's, from the rounded inverse, gives the rounded quotient, unless the rest is
// a subnormal. These signs keep that of a zero: GCC gives a negated fmaf() of zero another one.
// bench/quotients.cc compares it with divisions.
HETCOMM_FUNCTION float quotient_of(float value, float divisor, float inverse) {
  const float estimate = value * inverse;
  return fmaf(fmaf(estimate, divisor, -value), -inverse, estimate);
}
#endif

// A group's greatest code is `most`. Its scale is 2^least at least: no product is a subnormal. The
// scale is stored as a Float32 or, rounded up, as a Bfloat16: then no code is greater than `most`.
template <int most, int least>
struct GroupScale {
  // From the bits of a group's greatest magnitude. Bits order like magnitudes, with NaN last.
  HETCOMM_FUNCTION float scale(int greatest) {
    constexpr float kMost = most;
#ifdef HETCOMM_HOST
    const int quotient = bit_cast<int>(bit_cast<float>(greatest) / kMost);
#else
    const int quotient = bit_cast<int>(quotient_of(bit_cast<float>(greatest), kMost, 1 / kMost));
#endif
    constexpr int kLeast = (127 + least) << 23;
    const int scale = select(quotient < kLeast, kLeast, quotient);
    return bit_cast<float>(select(greatest >= 0x7f800000, 0x7fc00000, scale));
  }
};

// Block quantisation: device/quantise.h has the definition.
template <int bits>
struct Quantised : GroupScale<(1 << (bits - 1)) - 1, -124> {
  // The nearest integer, ties to even, of a number of magnitude 2^22 at most. Next to 2^23 floats
  // are 1 apart, so the addition rounds. A NaN gives 0.
  HETCOMM_FUNCTION int nearest(float quotient) {
    return select(quotient != quotient, 0, with_nearest(quotient) - 0x4b400000);
  }
  // The bits of a float32, of which the low 22 are those of the nearest integer.
  HETCOMM_FUNCTION int with_nearest(float quotient) {
    return bit_cast<int>(quotient + 12582912.0f);  // 1.5 * 2^23
  }
};

// 8-bit floats whose group has a scale: codec/scaled_codec.cc has the definition.
template <class Number, int most>
struct Scaled : GroupScale<most, -100> {
  // The nearest number to a quotient of finite numbers.
  HETCOMM_FUNCTION int nearest(float quotient) { return Number::Format::round_within(quotient); }
};
