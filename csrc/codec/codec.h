#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace hetcomm {

// How elements are encoded on links between hosts. codec.cc has a row for each codec. All codecs
// are lossless: the checker takes decoded elements for the original ones.
struct Codec {
  const char* name;  // in HETCOMM_BRIDGE_CODEC
  bool (*encodes)(Dtype dtype);
  // Bytes of memory for `count` elements. No message is longer than this.
  size_t (*capacity)(Dtype dtype, size_t count);
  // Returns the bytes of the result.
  size_t (*encode)(Dtype dtype, void* encoded, const void* source, size_t count);
  // Checks all lengths before use.
  Status (*decode)(Dtype dtype, void* target, const void* encoded, size_t bytes, size_t count);
  // For the cost model: bytes of the result for each 1,000 bytes of elements.
  int64_t (*expected)(Dtype dtype);
};

const std::vector<const Codec*>& codecs();
// The codec of a group: none, one, or ("auto") one where the cost model says that it is faster.
struct CodecSetting {
  const Codec* codec = nullptr;
  bool automatic = false;
};
// "none", "auto" or the name of a codec. Throws Error(invalid_argument).
CodecSetting codec_setting(const std::string& name);

// The value of HETCOMM_BRIDGE_CODEC. Throws Error(invalid_argument).
std::string bridge_codec();

// Memory of encoded elements: the length of the encoded data, then from kEncodedHeader on the data.
// The header is not sent.
inline constexpr size_t kEncodedHeader = 64;
size_t encoded_length(const void* memory);
void set_encoded_length(void* memory, size_t bytes);

// The steps of plans. `encoded` is such memory.
Status encode_elements(const Codec& codec, Dtype dtype, void* encoded, const void* source,
                       size_t count);
Status decode_elements(const Codec& codec, Dtype dtype, void* target, const void* encoded,
                       size_t count);

}  // namespace hetcomm
