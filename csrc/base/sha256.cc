#include "base/sha256.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>

#include "base/status.h"
#include "base/system_text.h"

namespace hetcomm {
namespace {

constexpr size_t kBlockBytes = 64;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// The first 32 bits of the fractional parts of the square roots of the first 8 primes.
using State = std::array<uint32_t, 8>;
constexpr State kFirstState = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                               0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

void put_big_endian(uint32_t value, char* to) {
  for (int byte = 0; byte < 4; ++byte) to[byte] = static_cast<char>(value >> (24 - 8 * byte));
}

uint32_t big_endian(const char* from) {
  uint32_t value = 0;
  for (int byte = 0; byte < 4; ++byte) value = value << 8 | static_cast<unsigned char>(from[byte]);
  return value;
}

void add_block(State& state, const char* block) {
  std::array<uint32_t, 64> schedule;
  for (size_t i = 0; i < 16; ++i) schedule[i] = big_endian(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t early = schedule[i - 15], late = schedule[i - 2];
    schedule[i] = schedule[i - 16] + schedule[i - 7] +
                  (std::rotr(early, 7) ^ std::rotr(early, 18) ^ early >> 3) +
                  (std::rotr(late, 17) ^ std::rotr(late, 19) ^ late >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t one = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                         ((e & f) ^ (~e & g)) + kRoundConstants[i] + schedule[i];
    const uint32_t two =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
  }
  const State added = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < state.size(); ++i) state[i] += added[i];
}

}  // namespace

std::string sha256(std::string_view message) {
  State state = kFirstState;
  size_t at = 0;
  for (; message.size() - at >= kBlockBytes; at += kBlockBytes) {
    add_block(state, message.data() + at);
  }
  // The rest, a one bit, zeros, and the length in bits.
  std::string rest(message.substr(at));
  rest += static_cast<char>(0x80);
  rest.resize((rest.size() + 8 + kBlockBytes - 1) / kBlockBytes * kBlockBytes);
  const uint64_t bits = uint64_t{message.size()} * 8;
  put_big_endian(static_cast<uint32_t>(bits >> 32), rest.data() + rest.size() - 8);
  put_big_endian(static_cast<uint32_t>(bits), rest.data() + rest.size() - 4);
  for (size_t block = 0; block < rest.size(); block += kBlockBytes) {
    add_block(state, rest.data() + block);
  }
  std::string digest(kDigestBytes, '\0');
  for (size_t i = 0; i < state.size(); ++i) put_big_endian(state[i], digest.data() + 4 * i);
  return digest;
}

std::string hmac_sha256(std::string_view key, std::string_view message) {
  std::string inner(key.size() > kBlockBytes ? sha256(key) : std::string(key));
  inner.resize(kBlockBytes);
  std::string outer = inner;
  for (char& byte : inner) byte ^= 0x36;
  for (char& byte : outer) byte ^= 0x5c;
  return sha256(outer + sha256(inner.append(message)));
}

bool equal_in_constant_time(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    difference = difference | static_cast<unsigned char>(one[i] ^ other[i]);
  }
  return difference == 0;
}

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t done = 0; done < count;) {
    const ssize_t got = getrandom(bytes.data() + done, count - done, 0);
    if (got > 0) done += static_cast<size_t>(got);
    if (got < 0 && errno != EINTR) {
      throw Error(Code::transport, system_text("the kernel gives no random bytes: ", kReason));
    }
  }
  return bytes;
}

}  // namespace hetcomm
