#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "codec/codec.h"

namespace hetcomm {

// Memory, streams and events are addresses in Python.
inline void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }
inline uintptr_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// Throws Error(invalid_argument) for another name, and for a dtype that the codec does not encode.
const Codec& codec_named(const std::string& name, Dtype dtype);

}  // namespace hetcomm
