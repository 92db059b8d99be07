#include "device/reduce.h"

#include "base/instruction_set.h"
#include "device/conversion_kernels.h"
#include "device/floating_point.h"
#include "device/reduction_kernels.h"

namespace hetcomm {
namespace {

struct HostKernels {
  const ReductionKernels* reductions;
  const ConversionKernels* conversions;
};

// By InstructionSet.
constexpr HostKernels kKernels[] = {
    {&reduction_kernels_baseline, &conversion_kernels_baseline},
#ifdef __x86_64__
    {&reduction_kernels_avx2, &conversion_kernels_avx2},
    {&reduction_kernels_avx512, &conversion_kernels_avx512},
#endif
};

const HostKernels& chosen() {
  static const HostKernels& kernels = kKernels[static_cast<size_t>(instruction_set())];
  return kernels;
}

}  // namespace

void reduce(Dtype dtype, ReduceOp op, void* target, const void* const* sources, int source_count,
            size_t count) {
  if (count == 0) return;
  const FloatingPointDefaults defaults;
  const ReductionKernels& kernels = *chosen().reductions;
  kernels.dtypes[static_cast<int>(dtype)].ops[static_cast<int>(op)](target, sources, source_count,
                                                                    count, 1);
}

void scaled_sum(Dtype dtype, Scale scale, void* target, const void* const* sources,
                int source_count, size_t count) {
  if (count == 0) return;
  const FloatingPointDefaults defaults;
  const ReductionKernels::Row& row = chosen().reductions->dtypes[static_cast<int>(dtype)];
  (scale.divides ? row.divided : row.multiplied)(target, sources, source_count, count, scale.by);
}

std::array<std::byte, 8> stored(Dtype dtype, double value) {
  std::array<std::byte, 8> bytes{};
  cast(dtype, bytes.data(), Dtype::float64, &value, 1);
  return bytes;
}

Scale rounded(Dtype dtype, Scale scale) {
  if (scale.divides) return scale;
  cast(Dtype::float64, &scale.by, dtype, stored(dtype, scale.by).data(), 1);
  return scale;
}

const ConversionKernels& conversion_kernels() { return *chosen().conversions; }

}  // namespace hetcomm
