#include <cstring>

#include "codec/block_codec.h"
#include "codec/block_kernels.h"
#include "codec/rows.h"
#include "device/block_format.h"
#include "device/quantise.h"

namespace hetcomm {
namespace {

// 8-bit floats with a scale for each group of elements, in float32, each result rounded once:
//   scale = max |x| / most, with most = 448 or 57344     code = nearest number of x / scale
// A scale is at least 2^-100. A group with a NaN or an infinity has the scale NaN and decodes to
// NaN throughout, so that an overflow stays visible. The layout is that of device/quantise.h, with
// numbers of cast() as codes.
class ScaledCodec final : public BlockCodec {
 public:
  ScaledCodec(const std::string& name, const BlockFormat& format,
              const BlockKernels::Scaled& kernels, const std::string& error_bound)
      : BlockCodec(name),
        format_(format),
        layout_{8, format.group},
        kernels_(kernels),
        error_bound_(error_bound) {}
  const BlockFormat* device_format() const override { return &format_; }
  std::string error_bound() const override { return error_bound_; }

 protected:
  size_t block_bytes(size_t count) const override { return encoded_bytes(layout_, count); }
  void encode_block(void* encoded, const float* values, size_t count) const override {
    auto* const scales = static_cast<std::byte*>(encoded);
    std::byte* const codes = scales + codes_offset(layout_, count);
    const size_t used = (count + layout_.group - 1) / layout_.group * sizeof(float);
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
  const BlockFormat format_;
  const Quantisation layout_;
  const BlockKernels::Scaled& kernels_;
  const std::string error_bound_;
};

std::unique_ptr<Codec> make(const std::string& name, const std::string& parameter, const char* code,
                            const BlockKernels::Scaled& kernels, const std::string& relative,
                            const std::string& absolute) {
  const int group = group_of(parameter);
  if (group == 0) return nullptr;
  return std::make_unique<ScaledCodec>(name, BlockFormat{code, group}, kernels,
                                       "element / " + relative + ", or largest element of each " +
                                           parameter + " / " + absolute + " if that is more");
}

}  // namespace

// Half of the spacing of subnormal numbers, 2^-10 and 2^-17, as shares of 448 and 57344.
const CodecRow kFp8E4m3Row{
    "fp8_e4m3", "256", kGroups, [](const std::string& name, const std::string& parameter) {
      return make(name, parameter, "Fp8E4m3", block_kernels().float8_e4m3fn, "16", "450,000");
    }};
const CodecRow kFp8E5m2Row{
    "fp8_e5m2", "256", kGroups, [](const std::string& name, const std::string& parameter) {
      return make(name, parameter, "Fp8E5m2", block_kernels().float8_e5m2, "8", "7.5e9");
    }};

}  // namespace hetcomm
