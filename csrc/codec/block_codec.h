#pragma once

#include "codec/codec.h"

namespace hetcomm {

// A lossy codec. Elements become float32 and are encoded in blocks of kBlock, one after the other.
// The last block may be shorter. A derived class encodes one block.
class BlockCodec : public Codec {
 public:
  static constexpr size_t kBlock = 2048;

  using Codec::Codec;
  bool encodes(Dtype dtype) const override;  // float32, float16 and bfloat16
  size_t capacity(Dtype dtype, size_t count) const final;
  size_t encode(Dtype dtype, void* encoded, const void* source, float* residual,
                size_t count) const final;
  Status decode(Dtype dtype, void* target, const void* encoded, size_t bytes,
                size_t count) const final;
  Status sum(Dtype dtype, void* target, const void* plain, const void* const* encoded, int sources,
             size_t count) const final;
  int64_t expected(Dtype dtype) const final;
  int64_t effort(Dtype dtype) const override;

 protected:
  virtual size_t block_bytes(size_t count) const = 0;
  virtual void encode_block(void* encoded, const float* values, size_t count) const = 0;
  // values[i] = (first[i] +) decoded value. `first` may be null or `values`. False for bytes that
  // no encoder made; the values are any then.
  virtual bool decode_block(float* values, const float* first, const void* encoded,
                            size_t count) const = 0;
};

}  // namespace hetcomm
