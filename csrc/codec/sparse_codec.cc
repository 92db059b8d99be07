#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/text.h"
#include "codec/block_codec.h"
#include "codec/block_kernels.h"
#include "codec/rows.h"
#include "device/device_format.h"

namespace hetcomm {
namespace {

// The elements of largest magnitude of each block, without change; the others become zero. Of equal
// magnitudes the earlier are kept. A NaN has the largest magnitude, so it survives.
//
// Layout of a block of `count` elements, in the byte order of the machine:
//   places of the kept elements, ceil(share * count) in all, whichever is shorter:
//     uint16 of each, in order; or
//     a bit for each element, lowest bit first, in words of 64; bits beyond `count` are zero
//   float32 of each place
class SparseCodec final : public BlockCodec {
 public:
  SparseCodec(const std::string& name, double share, const std::string& percent)
      : BlockCodec(name), sparse_{share}, format_{sparse_}, percent_(percent) {}
  const DeviceFormat& device_format() const override { return format_; }
  int64_t effort(Dtype dtype) const override { return dtype == Dtype::float32 ? 600 : 1250; }
  std::string error_bound() const override {
    return "elements that are not among the largest " + percent_ + " % of each 2048 become 0";
  }

 protected:
  size_t block_bytes(size_t count) const override {
    return bytes_of_places(count) + kept(count) * sizeof(float);
  }
  void encode_block(void* encoded, const float* values, size_t count) const override;
  bool decode_block(float* values, const float* first, const void* encoded,
                    size_t count) const override;

 private:
  size_t bytes_of_places(size_t count) const {
    return sparse_.numbers(count) ? kept(count) * sizeof(uint16_t)
                                  : SparseFormat::words(count) * sizeof(uint64_t);
  }
  bool read_places(uint64_t* chosen, const void* encoded, size_t count) const;
  size_t kept(size_t count) const { return sparse_.kept(count); }

  const SparseFormat sparse_;
  const DeviceFormat format_;
  const std::string percent_;
};

void SparseCodec::encode_block(void* encoded, const float* values, size_t count) const {
  uint64_t chosen[kBlock / 64];
  block_kernels().select(chosen, values, count, kept(count));
  auto* places = static_cast<std::byte*>(encoded);
  auto* out = places + bytes_of_places(count);
  if (!sparse_.numbers(count)) std::memcpy(places, chosen, bytes_of_places(count));
  for (size_t word = 0; word < SparseFormat::words(count); ++word) {
    for (uint64_t bits = chosen[word]; bits != 0; bits &= bits - 1) {
      const auto place = static_cast<uint16_t>(64 * word + std::countr_zero(bits));
      if (sparse_.numbers(count)) {
        std::memcpy(places, &place, sizeof(place));
        places += sizeof(place);
      }
      const float value = values[place];
      const float one_nan = std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
      std::memcpy(out, &one_nan, sizeof(float));
      out += sizeof(float);
    }
  }
}

// As a bit for each element. False for places that no encoder made.
bool SparseCodec::read_places(uint64_t* chosen, const void* encoded, size_t count) const {
  std::fill_n(chosen, SparseFormat::words(count), 0);
  if (sparse_.numbers(count)) {
    const auto* at = static_cast<const std::byte*>(encoded);
    for (int last = -1, left = static_cast<int>(kept(count)); left > 0; --left) {
      uint16_t place;
      std::memcpy(&place, at, sizeof(place));
      if (place <= last || place >= count) return false;
      chosen[place / 64] |= uint64_t{1} << place % 64;
      last = place;
      at += sizeof(place);
    }
    return true;
  }
  std::memcpy(chosen, encoded, bytes_of_places(count));
  size_t found = 0;
  for (size_t word = 0; word < SparseFormat::words(count); ++word) {
    found += std::popcount(chosen[word]);
  }
  const bool beyond = count % 64 != 0 && chosen[count / 64] >> count % 64 != 0;
  return found == kept(count) && !beyond;
}

bool SparseCodec::decode_block(float* values, const float* first, const void* encoded,
                               size_t count) const {
  uint64_t chosen[kBlock / 64];
  if (!read_places(chosen, encoded, count)) return false;

  alignas(64) float decoded[kBlock];
  std::fill_n(decoded, count, 0.0f);
  const auto* in = static_cast<const std::byte*>(encoded) + bytes_of_places(count);
  for (size_t word = 0; word < SparseFormat::words(count); ++word) {
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
  char text[32];
  if (parameter != std::string(text, std::to_chars(text, std::end(text), share).ptr)) {
    return nullptr;  // a codec has one name
  }
  return std::make_unique<SparseCodec>(name, share, format_general(100 * share));
}

}  // namespace

const CodecRow kTopkRow{"topk", "0.01", "share of elements to keep, above 0 and up to 1", make};

}  // namespace hetcomm
