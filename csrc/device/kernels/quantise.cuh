// Block quantisation; device/quantise.h defines values and layout. A team of at most 32
// neighbouring threads of one warp or wavefront quantises a group. Each thread holds vectors of 16
// bytes of the group. Dequantising is element-wise.

#ifdef HETCOMM_HIP
#define HETCOMM_SHUFFLE(value, mask) __shfl_xor(value, mask, 32)
#else
#define HETCOMM_SHUFFLE(value, mask) __shfl_xor_sync(0xffffffffu, value, mask, 32)
#endif

// `lanes` codes in their bytes, lowest first.
template <int bits, int lanes>
struct Codes {
  Vector<unsigned char, lanes * bits / 8> bytes;

  HETCOMM_FUNCTION unsigned char byte(const int* codes, int index) {
    if constexpr (bits == 8) return static_cast<unsigned char>(codes[index]);
    return static_cast<unsigned char>((codes[2 * index] & 15) | codes[2 * index + 1] << 4);
  }
  HETCOMM_FUNCTION int code(unsigned char byte, int index) {
    if constexpr (bits == 8) return static_cast<signed char>(byte);
    // Shifted to the top and back, which repeats the sign.
    return static_cast<int>(static_cast<unsigned>(byte) << (index % 2 ? 24 : 28)) >> 28;
  }
};

// `codes` and the scales begin at multiples of 16 bytes; `aligned`: the source does too. The grid
// has at most one team for every group. All threads of a warp make the same number of rounds.
template <class T, int bits, int group>
__global__ void quantise_kernel(float* scales, unsigned char* codes,
                                const typename T::Stored* source, Count count, int aligned) {
  using Stored = typename T::Stored;
  constexpr int kLanes = kVectorBytes / sizeof(Stored);
  constexpr int kTeam = group / kLanes < 32 ? group / kLanes : 32;
  constexpr int kSteps = group / (kTeam * kLanes);
  using Pack = Vector<Stored, kLanes>;
  const Count groups = (count + group - 1) / group;
  const int member = threadIdx.x % kTeam;
  if (first_index() < -groups % 4) scales[groups + first_index()] = 0;  // up to 16 bytes
  for (Count round = first_index() / 32 * (32 / kTeam); round < groups;
       round += all_threads() / kTeam) {
    const Count index = round + threadIdx.x % 32 / kTeam;
    const Count begin = index * group;
    const bool whole = aligned && begin + group <= count;
    Pack pack[kSteps];
    int greatest = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const Count at = begin + (step * kTeam + member) * kLanes;
      if (whole) {
        pack[step] = *reinterpret_cast<const Pack*>(source + at);
      } else {
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
          pack[step].lane[lane] = at + lane < count ? source[at + lane] : Stored();
        }
      }
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        const int magnitude = bit_cast<int>(T::widen(pack[step].lane[lane])) & 0x7fffffff;
        greatest = magnitude > greatest ? magnitude : greatest;
      }
    }
#pragma unroll
    for (int mask = kTeam / 2; mask > 0; mask /= 2) {
      const int other = HETCOMM_SHUFFLE(greatest, mask);
      greatest = other > greatest ? other : greatest;
    }
    if (index >= groups) continue;
    const float scale = Quantised<bits>::scale(greatest);
    const float inverse = 1.0f / scale;
    if (member == 0) scales[index] = scale;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const Count at = begin + (step * kTeam + member) * kLanes;
      int code[kLanes];
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        // The rounded quotient, in one step from the rounded inverse (Markstein). Of 1.5e9
        // quotients at and next to ties none differed from the result of a division.
        const float value = T::widen(pack[step].lane[lane]);
        const float estimate = value * inverse;
        const float rest = fmaf(-estimate, scale, value);
        code[lane] = Quantised<bits>::nearest(fmaf(rest, inverse, estimate));
      }
      Codes<bits, kLanes> out;
      constexpr int kBytes = kLanes * bits / 8;
#pragma unroll
      for (int i = 0; i < kBytes; ++i) out.bytes.lane[i] = Codes<bits, kLanes>::byte(code, i);
      unsigned char* place = codes + at * bits / 8;
      if (at + kLanes <= count) {
        *reinterpret_cast<decltype(out.bytes)*>(place) = out.bytes;
      } else {
#pragma unroll
        for (int i = 0; i < kBytes; ++i) {
          if (at + i * 8 / bits < count) place[i] = out.bytes.lane[i];
        }
      }
    }
  }
}

// target[i] = (first[i] +) the sum of the sources, in their order, in float32, rounded once.
// `codes` is the offset of codes in every source. Vectors as in reduce.cuh, without a head.
template <class T, int bits, int group>
__global__ void dequantise_kernel(typename T::Stored* target, const typename T::Stored* first,
                                  const Sources sources, int source_count, Count codes, Count count,
                                  int aligned) {
  using Stored = typename T::Stored;
  constexpr int kLanes = kVectorBytes / sizeof(Stored);
  using Pack = Vector<Stored, kLanes>;
  using In = decltype(Codes<bits, kLanes>::bytes);
  for (Count vector = first_index(); vector * kLanes < count; vector += all_threads()) {
    const Count at = vector * kLanes;
    const bool whole = at + kLanes <= count;
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
      const float scale = static_cast<const float*>(sources.at[s])[at / group];
      const unsigned char* place =
          static_cast<const unsigned char*>(sources.at[s]) + codes + at * bits / 8;
      In in = {};
      if (whole) {
        in = *reinterpret_cast<const In*>(place);
      } else {
#pragma unroll
        for (int i = 0; i < kLanes * bits / 8; ++i) {
          if (at + i * 8 / bits < count) in.lane[i] = place[i];
        }
      }
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        const int code = Codes<bits, kLanes>::code(in.lane[lane * bits / 8], lane);
        const float value = static_cast<float>(code) * scale;
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
