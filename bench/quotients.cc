// Compares quotient_of() of the device kernels (csrc/device/kernels/numbers.cuh) with divisions.
//
//   g++ -O2 -mfma -ffp-contract=off -pthread bench/quotients.cc -o quotients && ./quotients
//
// The code of a number depends on the quotient next to ties only. Scales below 2^-40 are lifted, so
// no rest is a subnormal, and the mantissas alone decide. Hence these cases are all that matter.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <thread>

namespace {

float quotient_of(float value, float divisor, float inverse) {
  const float estimate = value * inverse;
  return std::fma(-std::fma(estimate, divisor, -value), inverse, estimate);
}

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

// A group's greatest magnitude over the greatest code, with the least scale.
bool scales(const char* what, float most, int least) {
  const float bound = std::ldexp(1.0f, least), inverse = 1 / most;
  return compare(what, 0x7f800000, 1, [=](uint32_t bits) -> uint64_t {
    const float value = number(bits);
    return std::fmax(quotient_of(value, most, inverse), bound) != std::fmax(value / most, bound);
  });
}

}  // namespace

int main() {
  bool same = scales("scales of int8", 127, -124) & scales("scales of int4", 7, -124);
  same &= scales("scales of fp8_e4m3", 448, -100) & scales("scales of fp8_e5m2", 57344, -100);
  same &= next_to("ties of 8-bit floats", 16, 16, 32, 1);
  same &= next_to("ties of integers", 2, 1, 255, 2);
  return same ? 0 : 1;
}
