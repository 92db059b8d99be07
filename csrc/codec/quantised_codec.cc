#include "codec/block_codec.h"
#include "codec/rows.h"
#include "device/device_format.h"

namespace hetcomm {
namespace {

// Block-quantised integers (device/quantise.h).
class QuantisedCodec final : public BlockCodec {
 public:
  QuantisedCodec(const std::string& name, Quantisation quantisation)
      : BlockCodec(name),
        quantisation_(quantisation),
        format_{BlockFormat{quantisation.bits == 8 ? "Int8" : "Int4", quantisation.group,
                            scale_type(quantisation)}} {}
  const DeviceFormat& device_format() const override { return format_; }
  std::string error_bound() const override {
    const bool rounded = quantisation_.scale != Dtype::float32;  // up, by less than 2^-7
    return "largest element of each " + std::to_string(quantisation_.group) + " / " +
           (quantisation_.bits == 8 ? (rounded ? "252" : "254") : (rounded ? "13.89" : "14"));
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
  const DeviceFormat format_;
};

template <int bits>
std::unique_ptr<Codec> make(const std::string& name, const std::string& parameter) {
  const std::optional<Quantisation> quantisation = grouping(bits, parameter);
  return quantisation ? std::make_unique<QuantisedCodec>(name, *quantisation) : nullptr;
}

}  // namespace

const CodecRow kInt8Row{"int8", kUsualGrouping, kGroupings, make<8>, spelled_grouping};
const CodecRow kInt4Row{"int4", kUsualGrouping, kGroupings, make<4>, spelled_grouping};

}  // namespace hetcomm
