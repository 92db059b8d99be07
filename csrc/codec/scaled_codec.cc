#include <cstring>

#include "codec/block_codec.h"
#include "codec/block_kernels.h"
#include "codec/rows.h"
#include "device/device_format.h"

namespace hetcomm {
namespace {

// 8-bit floats with a scale for each group of elements, in float32, each result rounded once:
//   scale = max |x| / most, with most = 448 or 57344     code = nearest number of x / scale
// A scale is at least 2^-100. A scale in bfloat16 is rounded up before codes are made. A group with
// a NaN or an infinity has the scale NaN and decodes to NaN throughout, so that an overflow stays
// visible. The layout is that of device/quantise.h, with numbers of cast() as codes.
class ScaledCodec final : public BlockCodec {
 public:
  ScaledCodec(const std::string& name, const char* code, const Quantisation& layout,
              const BlockKernels::Grouped& kernels, const std::string& error_bound)
      : BlockCodec(name),
        format_{BlockFormat{code, layout.group, scale_type(layout)}},
        layout_(layout),
        kernels_(kernels),
        error_bound_(error_bound) {}
  const DeviceFormat& device_format() const override { return format_; }
  std::string error_bound() const override { return error_bound_; }

 protected:
  size_t block_bytes(size_t count) const override { return encoded_bytes(layout_, count); }
  void encode_block(void* encoded, const float* values, size_t count) const override {
    auto* const scales = static_cast<std::byte*>(encoded);
    std::byte* const codes = scales + codes_offset(layout_, count);
    const size_t used = bytes_of_scales(layout_, count);
    std::memset(scales + used, 0, codes - scales - used);
    kernels_.encode(scales, codes, values, count, layout_.group);
  }
  bool decode_block(float* values, const float* first, const void* encoded,
                    size_t count) const override {
    const auto* const codes = static_cast<const std::byte*>(encoded) + codes_offset(layout_, count);
    kernels_.decode(values, first, encoded, codes, count, layout_.group);
    return true;
  }

 private:
  const DeviceFormat format_;
  const Quantisation layout_;
  const BlockKernels::Grouped& kernels_;
  const std::string error_bound_;
};

std::unique_ptr<Codec> make(const std::string& name, const std::string& parameter, const char* code,
                            const BlockKernels::Scaled& kernels, const std::string& relative,
                            const std::string& absolute) {
  const std::optional<Quantisation> layout = grouping(8, parameter);
  if (!layout) return nullptr;
  return std::make_unique<ScaledCodec>(
      name, code, *layout,
      layout->scale == Dtype::float32 ? kernels.with_float32 : kernels.with_bfloat16,
      "element / " + relative + ", or largest element of each " + std::to_string(layout->group) +
          " / " + absolute + " if that is more");
}

}  // namespace

// Half of the spacing of subnormal numbers, 2^-10 and 2^-17, as shares of 448 and 57344, with a
// scale that was rounded up.
const CodecRow kFp8E4m3Row{"fp8_e4m3", kUsualGrouping, kGroupings,
                           [](const std::string& name, const std::string& parameter) {
                             return make(name, parameter, "Fp8E4m3", block_kernels().float8_e4m3fn,
                                         "16", "450,000");
                           },
                           spelled_grouping};
const CodecRow kFp8E5m2Row{"fp8_e5m2", kUsualGrouping, kGroupings,
                           [](const std::string& name, const std::string& parameter) {
                             return make(name, parameter, "Fp8E5m2", block_kernels().float8_e5m2,
                                         "8", "7.4e9");
                           },
                           spelled_grouping};

}  // namespace hetcomm
