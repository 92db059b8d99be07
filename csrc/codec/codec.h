#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/encoded_header.h"
#include "base/status.h"

namespace hetcomm {

struct DeviceFormat;  // device/device_format.h

// How elements are encoded on links between hosts. codec.cc has a row for each codec. Immutable,
// with static storage; two codecs with equal names are one object. All functions take host memory
// at any alignment and allow no overlap, unless stated. All instruction sets give the same bits.
class Codec {
 public:
  explicit Codec(std::string name);
  virtual ~Codec() = default;
  Codec(const Codec&) = delete;

  const std::string& name() const { return name_; }  // in HETCOMM_BRIDGE_CODEC
  uint32_t id() const { return id_; }                // of the name, equal on all ranks
  // Every bit comes back. The results of other codecs have a length that the count gives.
  virtual bool lossless() const { return false; }
  virtual bool encodes(Dtype dtype) const = 0;
  // Bytes of memory for `count` elements; of a lossy codec the bytes of the result.
  virtual size_t capacity(Dtype dtype, size_t count) const = 0;
  // Returns the bytes of the result. With a residual, encodes source + residual; the residual then
  // has what the encoding lost. A lossless codec ignores the residual.
  virtual size_t encode(Dtype dtype, void* encoded, const void* source, float* residual,
                        size_t count) const = 0;
  // Checks all lengths before use.
  virtual Status decode(Dtype dtype, void* target, const void* encoded, size_t bytes,
                        size_t count) const = 0;
  // target = plain + encoded[0] + encoded[1] + ..., in float32 and rounded once; lossy codecs
  // alone. `plain` may be null or the target. `encoded` has `sources` results of this codec, one at
  // least.
  virtual Status sum(Dtype dtype, void* target, const void* plain, const void* const* encoded,
                     int sources, size_t count) const;
  // How kernels of devices encode and decode.
  virtual const DeviceFormat& device_format() const = 0;
  // For the cost model: bytes of the result for each 1,000 bytes of elements, and the time of
  // encoding or decoding where lossless on bfloat16 takes 1,000.
  virtual int64_t expected(Dtype dtype) const = 0;
  virtual int64_t effort(Dtype dtype) const = 0;
  // The most that a finite element changes, for people.
  virtual std::string error_bound() const = 0;

 private:
  const std::string name_;
  const uint32_t id_;
};

// Every codec, with its usual parameter.
const std::vector<const Codec*>& codecs();

// The codecs of a group or a call, by the widest boundary between the ranks of the group.
struct CodecSetting {
  const Codec* codec = nullptr;    // of groups of several hosts; null: none
  bool automatic = false;          // `codec` only where the cost model says that it is faster
  bool given = true;               // false: a call with the setting of its group
  const Codec* in_host = nullptr;  // lossy, of groups of several islands on one host; null: none

  bool lossy() const;                         // whether one of both is
  CodecSetting at(bool several_hosts) const;  // what holds there, as `codec`
  bool operator==(const CodecSetting&) const = default;
};
inline constexpr CodecSetting kCodecOfGroup{.given = false};

// "none", "auto" or the name of a codec, with a parameter if need be: "int8", "int8:128",
// "int8:128:bf16". Or such names by level: "cluster=int8,host=bf16". Throws
// Error(invalid_argument).
CodecSetting codec_setting(const std::string& name);
// The name; "group" for kCodecOfGroup.
std::string name_of(const CodecSetting& setting);
// A number of the name, equal on all ranks: 0 for kCodecOfGroup.
uint32_t id_of(const CodecSetting& setting);
// The setting of a number, for people; "another codec" if this process never used it.
std::string name_of_id(uint32_t id);

// The value of HETCOMM_BRIDGE_CODEC. Throws Error(invalid_argument).
std::string bridge_codec();

// The header of encoded memory, base/encoded_header.h, and the data behind.
size_t encoded_length(const void* memory);
void set_encoded_length(void* memory, size_t bytes);
inline void* encoded_data(void* memory) { return static_cast<std::byte*>(memory) + kEncodedHeader; }
inline const void* encoded_data(const void* memory) {
  return static_cast<const std::byte*>(memory) + kEncodedHeader;
}

// The steps of plans. `encoded` is such memory, whose data came whole. The residual may be null.
Status encode_elements(const Codec& codec, Dtype dtype, void* encoded, const void* source,
                       float* residual, size_t count);
Status decode_elements(const Codec& codec, Dtype dtype, void* target, const void* encoded,
                       size_t count);
// See Codec::sum(). Of a lossless codec decodes the one result.
Status sum_elements(const Codec& codec, Dtype dtype, void* target, const void* plain,
                    const std::vector<const void*>& encoded, size_t count);
// As kernels of devices, which return no error: then all elements become NaN.
void sum_or_nan(const Codec& codec, Dtype dtype, void* target, const void* plain,
                const std::vector<const void*>& encoded, size_t count);

}  // namespace hetcomm
