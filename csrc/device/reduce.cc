#include "device/reduce.h"

#include <string>

#include "base/config.h"
#include "base/status.h"
#include "device/conversion_kernels.h"
#include "device/floating_point.h"
#include "device/reduction_kernels.h"

namespace hetcomm {
namespace {

struct InstructionSet {
  const char* name;
  const ReductionKernels* reductions;
  const ConversionKernels* conversions;
  bool (*supported)();
};

// The best is last.
constexpr InstructionSet kInstructionSets[] = {
    {"baseline", &reduction_kernels_baseline, &conversion_kernels_baseline, [] { return true; }},
#ifdef __x86_64__
    {"avx2", &reduction_kernels_avx2, &conversion_kernels_avx2,
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }},
    {"avx512", &reduction_kernels_avx512, &conversion_kernels_avx512,
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("f16c");
     }},
#endif
};

const InstructionSet& choose() {
  const auto wanted = setting("HETCOMM_ISA");
  const InstructionSet* best = nullptr;
  std::string usable;
  for (const InstructionSet& set : kInstructionSets) {
    if (!set.supported()) continue;
    if (wanted == set.name) return set;
    usable += (usable.empty() ? "" : ", ") + std::string(set.name);
    best = &set;
  }
  if (wanted) {
    throw Error(Code::invalid_argument,
                "HETCOMM_ISA: expected an instruction set of this processor (" + usable +
                    "); got \"" + *wanted + "\"; unset it to use the best");
  }
  return *best;
}

const InstructionSet& chosen() {
  static const InstructionSet& set = choose();
  return set;
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

const char* instruction_set() { return chosen().name; }

const ConversionKernels& conversion_kernels() { return *chosen().conversions; }

}  // namespace hetcomm
