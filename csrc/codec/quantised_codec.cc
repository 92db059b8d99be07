#include <bit>
#include <charconv>

#include "codec/block_codec.h"
#include "codec/rows.h"
#include "device/block_format.h"
#include "device/quantise.h"

namespace hetcomm {
namespace {

// Block-quantised integers (device/quantise.h).
class QuantisedCodec final : public BlockCodec {
 public:
  QuantisedCodec(const std::string& name, Quantisation quantisation)
      : BlockCodec(name),
        quantisation_(quantisation),
        format_{quantisation.bits == 8 ? "Int8" : "Int4", quantisation.group} {}
  const BlockFormat* device_format() const override { return &format_; }
  std::string error_bound() const override {
    return "largest element of each " + std::to_string(quantisation_.group) + " / " +
           (quantisation_.bits == 8 ? "254" : "14");
  }

 protected:
  size_t block_bytes(size_t count) const override { return encoded_bytes(quantisation_, count); }
  void encode_block(void* encoded, const float* values, size_t count) const override {
    quantise(Dtype::float32, quantisation_, encoded, values, count);
  }
  bool decode_block(float* values, const float* first, const void* encoded,
                    size_t count) const override {
    dequantise(Dtype::float32, quantisation_, values, first, &encoded, 1, count);
    return true;
  }

 private:
  const Quantisation quantisation_;
  const BlockFormat format_;
};

template <int bits>
std::unique_ptr<Codec> make(const std::string& name, const std::string& parameter) {
  const int group = group_of(parameter);
  if (group == 0) return nullptr;
  return std::make_unique<QuantisedCodec>(name, Quantisation{bits, group});
}

}  // namespace

int group_of(const std::string& parameter) {
  int group = 0;
  const char* const end = parameter.data() + parameter.size();
  const auto [stop, error] = std::from_chars(parameter.data(), end, group);
  if (error != std::errc() || stop != end || group < 32 || group > 2048) return 0;
  if (parameter != std::to_string(group)) return 0;  // a codec has one name
  return std::has_single_bit(static_cast<unsigned>(group)) ? group : 0;
}

const CodecRow kInt8Row{"int8", "256", kGroups, make<8>};
const CodecRow kInt4Row{"int4", "256", kGroups, make<4>};

}  // namespace hetcomm
