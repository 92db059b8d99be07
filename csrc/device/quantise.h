#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace hetcomm {

// Symmetric block quantisation: every `group` elements share a scale and become integers of 8 or 4
// bits, as in ZeRO++ (arXiv 2306.10209, section 3.1 and its symmetric quantiser):
//   scale = max |x| / most, with most = 127 or 7     q = nearest integer of x / scale, ties to even
// in float32, each division rounded once. A scale is at least 2^-124, so that the treatment of
// subnormals does not matter; zeros give q = 0. A group with a NaN or an infinity has the scale NaN
// and decodes to NaN throughout, so that an overflow stays visible. A scale in bfloat16 is rounded
// up, by a factor of less than 1 + 2^-7, before q is made. So no |q| exceeds `most`. Hence, for
// finite x,
//   |x - q * scale| <= scale / 2 * (1 + 2^-16)
// and the last factor is the rounding of the quotient. bfloat16 has the range of float32: a scale
// neither overflows nor loses digits. float16 has not.
//
// Layout of `count` encoded elements, in the byte order of the machine:
//   scale of each group; zeros up to a multiple of 16 bytes; codes, two's complement. Codes of 4
//   bits lie two in a byte, the earlier in the low half; a last half byte is zero.
// Codes of a group begin at a multiple of 16 bytes from the start. To send data in pieces, encode
// each piece as a block of its own.
struct Quantisation {
  int bits = 8;                  // or 4
  int group = 256;               // a power of two from 32 to 2048
  Dtype scale = Dtype::float32;  // or bfloat16
};

// Throws Error(invalid_argument) unless `dtype` is float32, float16 or bfloat16, and `quantisation`
// is within its limits.
void check(Dtype dtype, const Quantisation& quantisation);

size_t bytes_of_scales(const Quantisation& quantisation, size_t count);  // without zeros
size_t codes_offset(const Quantisation& quantisation, size_t count);
size_t encoded_bytes(const Quantisation& quantisation, size_t count);

// These functions take host memory at any alignment and arguments that check() accepts. They are
// thread-safe. All instruction sets, and the device kernels, give the same bits.

// Writes encoded_bytes() bytes. No overlap is allowed.
void quantise(Dtype dtype, const Quantisation& quantisation, void* encoded, const void* source,
              size_t count);

// target[i] = (first[i] +) decoded value in encoded[0] + that in encoded[1] + ..., in that order,
// in float32 and rounded once to `dtype` as in reduce.h. Without `first`, one source is
// dequantised; with `first` equal to `target`, sources are dequantised and added. Other overlap is
// not allowed.
void dequantise(Dtype dtype, const Quantisation& quantisation, void* target, const void* first,
                const void* const* encoded, int source_count, size_t count);

}  // namespace hetcomm
