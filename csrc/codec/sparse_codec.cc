#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "codec/block_codec.h"
#include "codec/block_kernels.h"
#include "codec/rows.h"

namespace hetcomm {
namespace {

// The elements of largest magnitude of each block, without change; the others become zero. Of equal
// magnitudes the earlier are kept. A NaN has the largest magnitude, so it survives.
//
// Layout of a block of `count` elements, in the byte order of the machine:
//   a bit for each element, lowest bit first, in words of 64; bits beyond `count` are zero
//   float32 of each set bit, ceil(share * count) in all
class SparseCodec final : public BlockCodec {
 public:
  SparseCodec(const std::string& name, double share, const std::string& percent)
      : BlockCodec(name), share_(share), percent_(percent) {}
  int64_t effort(Dtype dtype) const override { return dtype == Dtype::float32 ? 600 : 1250; }
  std::string error_bound() const override {
    return "elements that are not among the largest " + percent_ + " % of each 2048 become 0";
  }

 protected:
  size_t block_bytes(size_t count) const override {
    return words(count) * sizeof(uint64_t) + kept(count) * sizeof(float);
  }
  void encode_block(void* encoded, const float* values, size_t count) const override;
  bool decode_block(float* values, const float* first, const void* encoded,
                    size_t count) const override;

 private:
  static size_t words(size_t count) { return (count + 63) / 64; }
  size_t kept(size_t count) const {
    const auto kept = static_cast<size_t>(std::ceil(share_ * static_cast<double>(count)));
    return std::clamp<size_t>(kept, 1, count);
  }

  const double share_;
  const std::string percent_;
};

void SparseCodec::encode_block(void* encoded, const float* values, size_t count) const {
  uint64_t chosen[kBlock / 64];
  block_kernels().select(chosen, values, count, kept(count));
  std::memcpy(encoded, chosen, words(count) * sizeof(uint64_t));
  auto* out = static_cast<std::byte*>(encoded) + words(count) * sizeof(uint64_t);
  for (size_t word = 0; word < words(count); ++word) {
    for (uint64_t bits = chosen[word]; bits != 0; bits &= bits - 1) {
      const float value = values[64 * word + std::countr_zero(bits)];
      const float one_nan = std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
      std::memcpy(out, &one_nan, sizeof(float));
      out += sizeof(float);
    }
  }
}

bool SparseCodec::decode_block(float* values, const float* first, const void* encoded,
                               size_t count) const {
  uint64_t chosen[kBlock / 64];
  std::memcpy(chosen, encoded, words(count) * sizeof(uint64_t));
  size_t found = 0;
  for (size_t word = 0; word < words(count); ++word) found += std::popcount(chosen[word]);
  const bool beyond = count % 64 != 0 && chosen[count / 64] >> count % 64 != 0;
  if (found != kept(count) || beyond) return false;

  alignas(64) float decoded[kBlock];
  std::fill_n(decoded, count, 0.0f);
  const auto* in = static_cast<const std::byte*>(encoded) + words(count) * sizeof(uint64_t);
  for (size_t word = 0; word < words(count); ++word) {
    for (uint64_t bits = chosen[word]; bits != 0; bits &= bits - 1) {
      std::memcpy(decoded + 64 * word + std::countr_zero(bits), in, sizeof(float));
      in += sizeof(float);
    }
  }
  if (first) {
    block_kernels().add(values, first, decoded, count);
  } else {
    std::copy_n(decoded, count, values);
  }
  return true;
}

std::unique_ptr<Codec> make(const std::string& name, const std::string& parameter) {
  double share = 0;
  const char* const end = parameter.data() + parameter.size();
  const auto [stop, error] = std::from_chars(parameter.data(), end, share);
  if (error != std::errc() || stop != end || !(share > 0) || share > 1) return nullptr;
  char percent[32];
  const auto [last, _] =
      std::to_chars(percent, std::end(percent), 100 * share, std::chars_format::general, 6);
  return std::make_unique<SparseCodec>(name, share, std::string(percent, last));
}

}  // namespace

const CodecRow kTopkRow{"topk", "0.01", "share of elements to keep, above 0 and up to 1", make};

}  // namespace hetcomm
