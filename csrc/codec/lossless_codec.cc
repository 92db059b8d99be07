#include "codec/lossless.h"
#include "codec/rows.h"
#include "device/device_format.h"

namespace hetcomm {
namespace {

class LosslessCodec final : public Codec {
 public:
  using Codec::Codec;
  bool lossless() const override { return true; }
  bool encodes(Dtype dtype) const override { return lossless_encodes(dtype); }
  size_t capacity(Dtype dtype, size_t count) const override {
    return lossless_capacity(dtype, count);
  }
  size_t encode(Dtype dtype, void* encoded, const void* source, float*,
                size_t count) const override {
    return lossless_encode(dtype, encoded, source, count);
  }
  Status decode(Dtype dtype, void* target, const void* encoded, size_t bytes,
                size_t count) const override {
    return lossless_decode(dtype, target, encoded, bytes, count);
  }
  const DeviceFormat& device_format() const override { return format_; }
  int64_t expected(Dtype dtype) const override;
  int64_t effort(Dtype dtype) const override;
  std::string error_bound() const override { return "none"; }

 private:
  const DeviceFormat format_{ExponentFormat{}};
};

// Of the gradients in docs/codecs.md.
int64_t LosslessCodec::expected(Dtype dtype) const {
  switch (dtype) {
    case Dtype::bfloat16:
      return 710;
    case Dtype::float16:
      return 835;
    default:
      return 850;
  }
}

int64_t LosslessCodec::effort(Dtype dtype) const { return dtype == Dtype::float32 ? 700 : 1000; }

}  // namespace

const CodecRow kLosslessRow{"lossless", "", "", [](const std::string& name, const std::string&) {
                              return std::unique_ptr<Codec>(new LosslessCodec(name));
                            }};

}  // namespace hetcomm
