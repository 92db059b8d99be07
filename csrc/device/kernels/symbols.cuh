// How lossless coding cuts the bits of an element, and how they come together again:
// codec/lossless.h. Also in the kernels of the host.

struct Bfloat16Bits {
  static constexpr unsigned kFormat = 0;  // LosslessFormat
  using Stored = unsigned short;
  static constexpr bool kFar = false;
  static constexpr int kFarPlanes = 0;  // bit planes of `far`; 0: bytes
  static constexpr Stored kNan = 0x7fc0;
  HETCOMM_FUNCTION unsigned char symbol(Stored x) { return static_cast<unsigned char>(x >> 7); }
  HETCOMM_FUNCTION unsigned char near(Stored x) {
    return static_cast<unsigned char>((x & 0x7f) | (x >> 8 & 0x80));
  }
  HETCOMM_FUNCTION unsigned short far(Stored) { return 0; }
  HETCOMM_FUNCTION Stored join(unsigned char symbol, unsigned char near, unsigned short) {
    return static_cast<Stored>((near & 0x80) << 8 | symbol << 7 | (near & 0x7f));
  }
};

struct Float16Bits {
  static constexpr unsigned kFormat = 1;  // LosslessFormat
  using Stored = unsigned short;
  static constexpr bool kFar = true;
  static constexpr int kFarPlanes = 3;
  static constexpr Stored kNan = 0x7e00;
  HETCOMM_FUNCTION unsigned char symbol(Stored x) { return x >> 10 & 0x1f; }
  HETCOMM_FUNCTION unsigned char near(Stored x) { return static_cast<unsigned char>(x); }
  HETCOMM_FUNCTION unsigned short far(Stored x) {
    return static_cast<unsigned short>((x >> 8 & 3) | (x >> 13 & 4));
  }
  HETCOMM_FUNCTION Stored join(unsigned char symbol, unsigned char near, unsigned short far) {
    return static_cast<Stored>((far & 4) << 13 | symbol << 10 | (far & 3) << 8 | near);
  }
};

struct Float32Bits {
  static constexpr unsigned kFormat = 2;  // LosslessFormat
  using Stored = unsigned;
  static constexpr bool kFar = true;
  static constexpr int kFarPlanes = 0;
  static constexpr Stored kNan = 0x7fc00000;
  HETCOMM_FUNCTION unsigned char symbol(Stored x) { return static_cast<unsigned char>(x >> 23); }
  HETCOMM_FUNCTION unsigned char near(Stored x) {
    return static_cast<unsigned char>((x >> 16 & 0x7f) | (x >> 24 & 0x80));
  }
  HETCOMM_FUNCTION unsigned short far(Stored x) { return static_cast<unsigned short>(x); }
  HETCOMM_FUNCTION Stored join(unsigned char symbol, unsigned char near, unsigned short far) {
    return static_cast<Stored>(near & 0x80) << 24 | static_cast<Stored>(symbol) << 23 |
           static_cast<Stored>(near & 0x7f) << 16 | far;
  }
};
