#include "device/reduce.h"

#include <string>

#include "base/config.h"
#include "base/status.h"
#include "device/kernels.h"

namespace hetcomm {
namespace {

struct InstructionSet {
  const char* name;
  const Kernels* kernels;
  bool (*supported)();
};

// Best last.
constexpr InstructionSet kInstructionSets[] = {
    {"baseline", &kernels_baseline, [] { return true; }},
#ifdef __x86_64__
    {"avx2", &kernels_avx2,
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }},
    {"avx512", &kernels_avx512,
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
  const Kernels& kernels = *chosen().kernels;
  kernels.dtypes[static_cast<int>(dtype)].ops[static_cast<int>(op)](target, sources, source_count,
                                                                    count);
}

const char* instruction_set() { return chosen().name; }

}  // namespace hetcomm
