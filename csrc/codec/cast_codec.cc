#include "codec/block_codec.h"
#include "codec/block_kernels.h"
#include "codec/rows.h"
#include "device/device_format.h"

namespace hetcomm {
namespace {

// float32 elements as 16-bit floats, each rounded to nearest even as cast() does: subnormals, NaN
// and infinities come as they are, too large values as infinity. Nothing but the numbers is sent.
class CastCodec final : public BlockCodec {
 public:
  CastCodec(const std::string& name, const BlockKernels::Cast& kernels, const char* code,
            const char* error_bound)
      : BlockCodec(name),
        kernels_(kernels),
        format_{BlockFormat{code}},
        error_bound_(error_bound) {}
  bool encodes(Dtype dtype) const override { return dtype == Dtype::float32; }
  const DeviceFormat& device_format() const override { return format_; }
  std::string error_bound() const override { return error_bound_; }

 protected:
  size_t block_bytes(size_t count) const override { return count * sizeof(uint16_t); }
  void encode_block(void* encoded, const float* values, size_t count) const override {
    kernels_.encode(encoded, values, count);
  }
  bool decode_block(float* values, const float* first, const void* encoded,
                    size_t count) const override {
    kernels_.decode(values, first, encoded, count);
    return true;
  }

 private:
  const BlockKernels::Cast& kernels_;
  const DeviceFormat format_;
  const char* const error_bound_;
};

}  // namespace

const CodecRow kBf16Row{"bf16", "", "",
                        [](const std::string& name, const std::string&) -> std::unique_ptr<Codec> {
                          return std::make_unique<CastCodec>(
                              name, block_kernels().bfloat16, "Bf16",
                              "element / 256, or 2^-134 if that is more; infinity above 3.39e38");
                        }};
const CodecRow kFp16Row{"fp16", "", "",
                        [](const std::string& name, const std::string&) -> std::unique_ptr<Codec> {
                          return std::make_unique<CastCodec>(
                              name, block_kernels().float16, "Fp16",
                              "element / 2048, or 2^-25 if that is more; infinity above 65504");
                        }};

}  // namespace hetcomm
