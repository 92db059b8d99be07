#include "base/instruction_set.h"

#include <string>

#include "base/config.h"
#include "base/status.h"

namespace hetcomm {
namespace {

struct Row {
  InstructionSet set;
  const char* name;
  bool (*supported)();
};

constexpr Row kRows[] = {
    {InstructionSet::baseline, "baseline", [] { return true; }},
#ifdef __x86_64__
    {InstructionSet::avx2, "avx2",
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }},
    {InstructionSet::avx512, "avx512",
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("f16c");
     }},
#endif
};

InstructionSet choose() {
  const auto wanted = setting("HETCOMM_ISA");
  const Row* best = nullptr;
  std::string usable;
  for (const Row& row : kRows) {
    if (!row.supported()) continue;
    if (wanted == row.name) return row.set;
    usable += (usable.empty() ? "" : ", ") + std::string(row.name);
    best = &row;
  }
  if (wanted) {
    throw Error(Code::invalid_argument,
                "HETCOMM_ISA: expected an instruction set of this processor (" + usable +
                    "); got \"" + *wanted + "\"; unset it to use the best");
  }
  return best->set;
}

}  // namespace

InstructionSet instruction_set() {
  static const InstructionSet set = choose();
  return set;
}

const char* name(InstructionSet set) {
  for (const Row& row : kRows) {
    if (row.set == set) return row.name;
  }
  return "";
}

}  // namespace hetcomm
