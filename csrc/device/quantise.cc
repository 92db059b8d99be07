#include "device/quantise.h"

#include <cstring>
#include <string>

#include "base/status.h"
#include "device/conversion_kernels.h"

namespace hetcomm {
namespace {

constexpr int kLeastGroup = 32, kMostGroup = 2048;
constexpr size_t kAlignment = 16;

// The index in ConversionKernels::Quantisers; -1 if there is none.
int row(Dtype dtype) {
  switch (dtype) {
    case Dtype::float32:
      return 0;
    case Dtype::float16:
      return 1;
    case Dtype::bfloat16:
      return 2;
    default:
      return -1;
  }
}

const ConversionKernels::Quantisers& quantisers(const Quantisation& quantisation) {
  const ConversionKernels& kernels = conversion_kernels();
  return quantisation.scale == Dtype::float32 ? kernels.with_float32 : kernels.with_bfloat16;
}

}  // namespace

void check(Dtype dtype, const Quantisation& quantisation) {
  const auto [bits, group, scale] = quantisation;
  if (row(dtype) < 0) {
    throw Error(Code::invalid_argument,
                std::string("quantise: expected float32, float16 or bfloat16; got ") + name(dtype) +
                    "; cast to one of them first");
  }
  if (bits != 8 && bits != 4) {
    throw Error(Code::invalid_argument,
                "quantise: expected 8 or 4 bits; got " + std::to_string(bits));
  }
  if (group < kLeastGroup || group > kMostGroup || (group & (group - 1)) != 0) {
    throw Error(Code::invalid_argument,
                "quantise: expected a group of a power of two from 32 to 2048 elements; got " +
                    std::to_string(group));
  }
  if (scale != Dtype::float32 && scale != Dtype::bfloat16) {
    throw Error(
        Code::invalid_argument,
        std::string("quantise: expected a scale in float32 or bfloat16; got ") + name(scale));
  }
}

size_t bytes_of_scales(const Quantisation& quantisation, size_t count) {
  return (count + quantisation.group - 1) / quantisation.group * size_of(quantisation.scale);
}

size_t codes_offset(const Quantisation& quantisation, size_t count) {
  return (bytes_of_scales(quantisation, count) + kAlignment - 1) / kAlignment * kAlignment;
}

size_t encoded_bytes(const Quantisation& quantisation, size_t count) {
  return codes_offset(quantisation, count) + (count * quantisation.bits + 7) / 8;
}

void quantise(Dtype dtype, const Quantisation& quantisation, void* encoded, const void* source,
              size_t count) {
  const ConversionKernels::Quantisers& kernels = quantisers(quantisation);
  char* scales = static_cast<char*>(encoded);
  char* codes = scales + codes_offset(quantisation, count);
  char* end_of_scales = scales + bytes_of_scales(quantisation, count);
  std::memset(end_of_scales, 0, codes - end_of_scales);
  const auto& table = quantisation.bits == 8 ? kernels.quantise8 : kernels.quantise4;
  table[row(dtype)](scales, codes, source, count, quantisation.group);
}

void dequantise(Dtype dtype, const Quantisation& quantisation, void* target, const void* first,
                const void* const* encoded, int source_count, size_t count) {
  const ConversionKernels::Quantisers& kernels = quantisers(quantisation);
  const auto& table = quantisation.bits == 8 ? kernels.dequantise8 : kernels.dequantise4;
  table[row(dtype)](target, first, encoded, source_count, codes_offset(quantisation, count), count,
                    quantisation.group);
}

}  // namespace hetcomm
