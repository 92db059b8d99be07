#pragma once

#include <cstddef>

namespace hetcomm {

// Memory of encoded elements: of a lossless codec the length of the data, a uint64, then from
// kEncodedHeader on the data. The header is not sent.
inline constexpr size_t kEncodedHeader = 64;

}  // namespace hetcomm
