#include "device/cast.h"

#include <string_view>

#include "device/host_kernels.h"
#include "device/reduce.h"

namespace hetcomm {
const HostKernels& host_kernels() {
  static const HostKernels& chosen = []() -> const HostKernels& {
#ifdef __x86_64__
    const std::string_view wanted = instruction_set();
    if (wanted == "avx512") return host_kernels_avx512;
    if (wanted == "avx2") return host_kernels_avx2;
#endif
    return host_kernels_baseline;
  }();
  return chosen;
}

void cast(Dtype to, void* target, Dtype from, const void* source, size_t count) {
  host_kernels().from[static_cast<int>(from)].to[static_cast<int>(to)](target, source, count);
}

}  // namespace hetcomm
