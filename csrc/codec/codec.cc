#include "codec/codec.h"

#include <cstring>

#include "base/config.h"
#include "codec/lossless.h"

namespace hetcomm {
namespace {

// Of the gradients in docs/codecs.md.
int64_t expected_of_lossless(Dtype dtype) {
  switch (dtype) {
    case Dtype::bfloat16:
      return 710;
    case Dtype::float16:
      return 835;
    default:
      return 850;
  }
}

constexpr Codec kLossless{.name = "lossless",
                          .encodes = lossless_encodes,
                          .capacity = lossless_capacity,
                          .encode = lossless_encode,
                          .decode = lossless_decode,
                          .expected = expected_of_lossless};

}  // namespace

const std::vector<const Codec*>& codecs() {
  static const auto* const rows = new std::vector<const Codec*>{&kLossless};
  return *rows;
}

CodecSetting codec_setting(const std::string& name) {
  if (name == "none") return {};
  if (name == "auto") return {&kLossless, true};
  std::string known = "none, auto";
  for (const Codec* codec : codecs()) {
    if (name == codec->name) return {codec, false};
    known += std::string(", ") + codec->name;
  }
  throw Error(Code::invalid_argument,
              "unknown codec: expected one of " + known + "; got \"" + name + "\"");
}

std::string bridge_codec() {
  std::string name = setting("HETCOMM_BRIDGE_CODEC", "none");
  try {
    codec_setting(name);
  } catch (const Error& error) {
    throw Error(Code::invalid_argument,
                "HETCOMM_BRIDGE_CODEC: " + error.status().details().message);
  }
  return name;
}

size_t encoded_length(const void* memory) {
  uint64_t bytes;
  std::memcpy(&bytes, memory, sizeof(bytes));
  return bytes;
}

void set_encoded_length(void* memory, size_t length) {
  const uint64_t bytes = length;
  std::memcpy(memory, &bytes, sizeof(bytes));
}

Status encode_elements(const Codec& codec, Dtype dtype, void* encoded, const void* source,
                       size_t count) {
  void* const data = static_cast<std::byte*>(encoded) + kEncodedHeader;
  set_encoded_length(encoded, codec.encode(dtype, data, source, count));
  return Status();
}

Status decode_elements(const Codec& codec, Dtype dtype, void* target, const void* encoded,
                       size_t count) {
  const void* const data = static_cast<const std::byte*>(encoded) + kEncodedHeader;
  return codec.decode(dtype, target, data, encoded_length(encoded), count);
}

}  // namespace hetcomm
