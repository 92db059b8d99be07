#pragma once

#include <cstddef>
#include <cstdint>

namespace hetcomm::emulated {

// One number of a CclType.
struct Scalar {
  unsigned char bytes[8] = {};
};

size_t size_of_type(int type);  // 0: no such type
bool floating_type(int type);

// target = sources[0] op sources[1] op ...; `op` is op_sum, op_product, op_max or op_min.
void combine(int type, int op, void* target, const void* const* sources, int source_count,
             size_t count);
void scale(int type, const Scalar& by, void* target, const void* source, size_t count);
void divide(int type, int by, void* target, size_t count);  // integers
Scalar reciprocal(int type, int of);                        // of floats

}  // namespace hetcomm::emulated
