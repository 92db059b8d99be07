#pragma once

#include <memory>
#include <optional>
#include <string>

#include "codec/codec.h"
#include "device/quantise.h"

namespace hetcomm {

// Codecs of one kind. `make` gets the parameter in the name, "128" of "int8:128", or `usual`. The
// name of the codec leaves out the usual parameter. Returns null for a parameter that cannot be.
struct CodecRow {
  const char* name;
  const char* usual;       // empty: no parameter
  const char* parameters;  // for errors: "a power of two from 32 to 2048"
  std::unique_ptr<Codec> (*make)(const std::string& name, const std::string& parameter);
  // The one spelling in names of a parameter that has several; null if each has one.
  std::string (*spelled)(const std::string& parameter) = nullptr;
};

// The parameter of codecs with a scale for each group, in grouping.cc: "128", "bf16" or "128:bf16".
// Null, or the text itself, for a parameter that cannot be.
inline constexpr char kUsualGrouping[] = "256:fp32";
inline constexpr char kGroupings[] =
    "elements with one scale, a power of two from 32 to 2048, the type of the scale, fp32 or bf16, "
    "or both";
std::optional<Quantisation> grouping(int bits, const std::string& parameter);
std::string spelled_grouping(const std::string& parameter);
// How kernels of devices store the scale, for BlockFormat.
const char* scale_type(const Quantisation& quantisation);

extern const CodecRow kLosslessRow;              // lossless_codec.cc
extern const CodecRow kBf16Row, kFp16Row;        // cast_codec.cc
extern const CodecRow kFp8E4m3Row, kFp8E5m2Row;  // scaled_codec.cc
extern const CodecRow kInt8Row, kInt4Row;        // quantised_codec.cc
extern const CodecRow kTopkRow;                  // sparse_codec.cc

}  // namespace hetcomm
