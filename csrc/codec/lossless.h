#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"

namespace hetcomm {

// Lossless coding of floating-point data: every bit comes back, of NaN payloads and subnormals too.
// Values of one tensor have few different exponents, so exponents get short codes. Sign and
// mantissa stay as they are. ZipCCL (arXiv 2604.27844) codes exponents, too.
//
// An element is cut into a symbol (the exponent, 8 bits), `near` (8 bits) and `far`:
//   bfloat16  near = sign and mantissa;              no far
//   float16   near = the low 8 bits of the mantissa; far = sign and upper mantissa, 3 bits
//   float32   near = sign and upper mantissa;        far = the low 16 bits of the mantissa
//
// Layout of `count` encoded elements, in the byte order of the machine. Fields have any alignment.
//   Data that does not shrink are sent as they are. So the length tells whether data are encoded.
//   uint32  kMark + the format; uint32 length of the whole; uint64 count
//   uint16  the length of each block of 4096 elements; a block of its full length is not encoded
//   blocks, one after the other:
//     uint8   width of a code: 0 to 4 bits
//     uint8   streams that are stored: 1 near, 2 far; all bits of a missing stream are zero
//     uint16  number of escapes
//     uint8   symbols with a code: 2^width - 1 of them; of width 0, the one symbol of the block
//     near    a byte each, if stored
//     far     float32: two bytes each; float16: bit planes of 3 bits; if stored
//     codes   bit planes of `width` bits. The code with all bits set is an escape.
//     escapes the symbols without a code, a byte each, in order
// Bit planes hold 64 elements in a word for each bit, lowest bit first. Half a word is what a
// ballot of 32 threads of a device gives.
enum class LosslessFormat : uint8_t { bfloat16, float16, float32 };

// Whether the dtype has a lossless format.
bool lossless_encodes(Dtype dtype);

// Bytes of memory that lossless_encode() may write. The result is never longer than the data.
size_t lossless_capacity(Dtype dtype, size_t count);

// Encodes host memory at any alignment. Returns the length of the result, at most the bytes of the
// source. No overlap is allowed. All instruction sets give the same bits. Both functions are
// thread-safe.
size_t lossless_encode(Dtype dtype, void* encoded, const void* source, size_t count);

// Writes `count` elements. Returns an error of Code::transport where lengths do not fit; the target
// then has any values. Reads at most `bytes` bytes. Changed values are not noticed.
Status lossless_decode(Dtype dtype, void* target, const void* encoded, size_t bytes, size_t count);

}  // namespace hetcomm
