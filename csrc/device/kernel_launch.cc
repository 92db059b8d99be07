#include "device/kernel_launch.h"

#include <algorithm>

#include "device/launch_parts.h"

namespace hetcomm {

using namespace launch_parts;

namespace {

constexpr size_t kReduceSteps = 2, kCastSteps = 4;  // as device/kernels has them
struct Cut {
  uint64_t count, head, vectors;
};

// Vectors begin where `pointer` is a multiple of 16.
Cut cut_at(const void* pointer, size_t element, size_t count, size_t lanes) {
  const size_t head = (kVectorBytes - address(pointer) % kVectorBytes) % kVectorBytes / element;
  if (head >= count) return {count, 0, 0};
  return {count, head, (count - head) / lanes};
}

size_t threads_for(const Cut& cut, size_t lanes, size_t steps) {
  return std::max((cut.vectors + steps - 1) / steps, cut.count - cut.vectors * lanes);
}

}  // namespace

Status reduce_launch(KernelLaunch& launch, Dtype dtype, ReduceOp op, void* target,
                     const void* const* sources, int source_count, size_t count) {
  const size_t size = size_of(dtype);
  if (!reducible(dtype, op) || scales(op)) {
    return Status(Code::invalid_argument,
                  std::string("device reduce: expected a reducible dtype and operation; got ") +
                      name(op) + " of " + name(dtype));
  }
  Sources all;
  if (Status status = make_sources(all, "reduce", sources, source_count, size); !status) {
    return status;
  }
  if (!aligned(target, size)) return misaligned("reduce", size, target);
  const size_t lanes = kVectorBytes / size;
  bool alike = true;
  for (int s = 0; s < source_count; ++s) {
    alike = alike && (address(sources[s]) - address(target)) % kVectorBytes == 0;
  }
  const Cut cut = alike ? cut_at(target, size, count, lanes) : Cut{count, 0, 0};
  launch.kernel = "reduce_kernel<" + qualified(name(dtype)) + ", hetcomm::Op::" + name(op) + ">";
  set_blocks(launch, threads_for(cut, lanes, kReduceSteps));
  add(launch, target);
  add(launch, all);
  add(launch, source_count);
  add(launch, cut);
  return {};
}

Status scale_launch(KernelLaunch& launch, Dtype dtype, Scale scale, void* target,
                    const void* source, size_t count) {
  const size_t size = size_of(dtype);
  if (Status status = floating("scale", dtype); !status) return status;
  for (const void* pointer : {static_cast<const void*>(target), source}) {
    if (!aligned(pointer, size)) return misaligned("scale", size, pointer);
  }
  const size_t lanes = kVectorBytes / size;
  const bool alike = (address(source) - address(target)) % kVectorBytes == 0;
  const Cut cut = alike ? cut_at(target, size, count, lanes) : Cut{count, 0, 0};
  launch.kernel =
      "scale_kernel<" + qualified(name(dtype)) + ", " + (scale.divides ? "true" : "false") + ">";
  set_blocks(launch, threads_for(cut, lanes, 1));
  add(launch, target);
  add(launch, source);
  add(launch, scale.by);
  add(launch, cut);
  return {};
}

Status cast_launch(KernelLaunch& launch, Dtype to, void* target, Dtype from, const void* source,
                   size_t count) {
  for (const Dtype dtype : {from, to}) {
    if (Status status = floating("cast", dtype); !status) return status;
  }
  const size_t in = size_of(from), out = size_of(to);
  if (!aligned(source, in)) return misaligned("cast", in, source);
  if (!aligned(target, out)) return misaligned("cast", out, target);
  const size_t lanes = kVectorBytes / std::max(in, out);
  Cut cut = in > out ? cut_at(source, in, count, lanes) : cut_at(target, out, count, lanes);
  if ((address(source) + cut.head * in) % (lanes * in) != 0 ||
      (address(target) + cut.head * out) % (lanes * out) != 0) {
    cut = {count, 0, 0};
  }
  launch.kernel = "cast_kernel<" + qualified(name(from)) + ", " + qualified(name(to)) + ">";
  set_blocks(launch, threads_for(cut, lanes, kCastSteps));
  add(launch, target);
  add(launch, source);
  add(launch, cut);
  return {};
}

}  // namespace hetcomm
