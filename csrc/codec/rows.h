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

// Of codecs with a scale for each group: its elements; 0 for a parameter that cannot be.
inline constexpr char kGroups[] = "elements with one scale, a power of two from 32 to 2048";
int group_of(const std::string& parameter);  // quantised_codec.cc

extern const CodecRow kLosslessRow;              // lossless_codec.cc
extern const CodecRow kBf16Row, kFp16Row;        // cast_codec.cc
extern const CodecRow kFp8E4m3Row, kFp8E5m2Row;  // scaled_codec.cc
extern const CodecRow kInt8Row, kInt4Row;        // quantised_codec.cc
extern const CodecRow kTopkRow;                  // sparse_codec.cc

}  // namespace hetcomm
