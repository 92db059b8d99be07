#include "device/cast.h"

#include "device/conversion_kernels.h"

namespace hetcomm {

void cast(Dtype to, void* target, Dtype from, const void* source, size_t count) {
  conversion_kernels().from[static_cast<int>(from)].to[static_cast<int>(to)](target, source, count);
}

}  // namespace hetcomm
