// Compares quotient_of() of the device kernels (csrc/device/kernels/numbers.cuh) with divisions.
//
//   g++ -std=c++20 -O2 -mfma -ffp-contract=off -pthread -Itests/core -Icsrc/device/kernels \
//       bench/quotients.cc -o quotients && ./quotients
//
// The code of a number depends on the quotient next to ties only. Scales below 2^-40 are lifted, so
// no rest is a subnormal, and the mantissas alone decide. Hence these cases are all that matter.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <thread>

#include "kernel_shim.h"
namespace kernels {
#include "numbers.cuh"
}

namespace {

using kernels::quotient_of;

float number(uint32_t bits) { return std::bit_cast<float>(bits); }

// Calls different(i) for i from 0 to count, in two threads. Prints how often it is true.
template <class Different>
bool compare(const char* what, uint32_t count, uint64_t each, const Different& different) {
  uint64_t found[2] = {0, 0};
  const auto half = [&](uint32_t thread) {
    for (uint32_t i = thread; i < count; i += 2) found[thread] += different(i);
  };
  std::thread other(half, 1);
  half(0);
  other.join();
  const uint64_t differ = found[0] + found[1];
  std::printf("%s: %llu of %llu differ\n", what, static_cast<unsigned long long>(differ),
              static_cast<unsigned long long>(count * each));
  return differ == 0;
}

// All divisors, and values up to 3 ulp beside a tie.
bool next_to(const char* what, int denominator, int first, int end, int step) {
  const auto different = [=](uint32_t mantissa) {
    const float divisor = number(0x3f800000 | mantissa), inverse = 1 / divisor;
    uint64_t found = 0;
    for (int tie = first; tie < end; tie += step) {
      const auto middle = static_cast<float>(static_cast<double>(tie) / denominator * divisor);
      for (int ulps = -3; ulps <= 3; ++ulps) {
        const float value = number(std::bit_cast<uint32_t>(middle) + ulps);
        found += quotient_of(value, divisor, inverse) != value / divisor;
      }
    }
    return found;
  };
  return compare(what, 1 << 23, 7 * ((end - first + step - 1) / step), different);
}

// A group's scale, by its greatest magnitude.
template <int most, int least>
bool scales(const char* what) {
  const float bound = std::ldexp(1.0f, least);
  return compare(what, 0x7f800000, 1, [=](uint32_t bits) -> uint64_t {
    const float scale = kernels::GroupScale<most, least>::scale(static_cast<int>(bits));
    return scale != std::fmax(number(bits) / most, bound);
  });
}

}  // namespace

int main() {
  bool same = scales<127, -124>("scales of int8") & scales<7, -124>("scales of int4");
  same &= scales<448, -100>("scales of fp8_e4m3") & scales<57344, -100>("scales of fp8_e5m2");
  same &= next_to("ties of 8-bit floats", 16, 16, 32, 1);
  same &= next_to("ties of integers", 2, 1, 255, 2);
  return same ? 0 : 1;
}
