#pragma once

#include <memory>
#include <string>

#include "codec/codec.h"

namespace hetcomm {

// Codecs of one kind. `make` gets the parameter in the name, "128" of "int8:128", or `usual`. The
// name of the codec leaves out the usual parameter. Returns null for a parameter that cannot be.
struct CodecRow {
  const char* name;
  const char* usual;       // empty: no parameter
  const char* parameters;  // for errors: "a power of two from 32 to 2048"
  std::unique_ptr<Codec> (*make)(const std::string& name, const std::string& parameter);
};

extern const CodecRow kLosslessRow;                // lossless_codec.cc
extern const CodecRow kInt8Row, kInt4Row;          // quantised_codec.cc

}  // namespace hetcomm
