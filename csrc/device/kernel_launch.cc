#include "device/kernel_launch.h"

#include <algorithm>
#include <cstring>

namespace hetcomm {
namespace {

// With the values and layouts of the same names in device/kernels.
constexpr size_t kVectorBytes = 16;
constexpr int kMostSources = 256;
constexpr size_t kReduceSteps = 2, kCastSteps = 4;
struct Sources {
  const void* at[kMostSources];
};
struct Cut {
  uint64_t count, head, vectors;
};

constexpr size_t kMostBlocks = 1 << 20;  // in larger calls threads work on several vectors

template <class T>
void add(KernelLaunch& launch, const T& argument) {
  launch.arguments.emplace_back(reinterpret_cast<const char*>(&argument), sizeof argument);
}

void set_blocks(KernelLaunch& launch, size_t threads) {
  const size_t blocks = (threads + launch.threads - 1) / launch.threads;
  launch.blocks = static_cast<unsigned>(std::min(blocks, kMostBlocks));
}

uintptr_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

bool aligned(const void* pointer, size_t bytes) { return address(pointer) % bytes == 0; }

std::string qualified(const char* type) { return std::string("hetcomm::") + type; }

Status floating(const char* operation, Dtype dtype) {
  if (class_of(dtype) == DtypeClass::floating) return {};
  return Status(Code::invalid_argument, std::string("device ") + operation +
                                            ": expected a floating dtype; got " + name(dtype));
}

Status misaligned(const char* operation, size_t bytes, const void* pointer) {
  return Status(Code::invalid_argument, std::string("device ") + operation +
                                            ": expected addresses that are multiples of " +
                                            std::to_string(bytes) + "; got one that is " +
                                            std::to_string(address(pointer) % bytes) + " beyond");
}

Status make_sources(Sources& all, const char* operation, const void* const* sources,
                    int source_count, size_t alignment) {
  if (source_count < 1 || source_count > kMostSources) {
    return Status(Code::invalid_argument, std::string("device ") + operation +
                                              ": expected 1 to 256 sources; got " +
                                              std::to_string(source_count));
  }
  std::memset(&all, 0, sizeof all);
  for (int s = 0; s < source_count; ++s) {
    if (!aligned(sources[s], alignment)) return misaligned(operation, alignment, sources[s]);
    all.at[s] = sources[s];
  }
  return {};
}

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

namespace {

std::string coder(const char* kernel, Dtype dtype, const BlockFormat& format) {
  return std::string(kernel) + "<" + qualified(name(dtype)) + ", " + qualified(format.code) + ", " +
         qualified(format.scale) + ", " + std::to_string(format.group) + ">";
}

}  // namespace

Status encode_launch(KernelLaunch& launch, Dtype dtype, const BlockFormat& format, void* encoded,
                     const void* source, float* residual, size_t count) {
  if (Status status = floating("encode", dtype); !status) return status;
  const size_t size = size_of(dtype), lanes = kVectorBytes / size, group = format.group;
  if (!aligned(source, size)) return misaligned("encode", size, source);
  if (!aligned(residual, sizeof(float))) return misaligned("encode", sizeof(float), residual);
  if (!aligned(encoded, kVectorBytes)) return misaligned("encode", kVectorBytes, encoded);
  const size_t team = std::min<size_t>(group / lanes, 32);
  launch.kernel = coder("encode_kernel", dtype, format);
  set_blocks(launch, (count + group - 1) / group * team);
  add(launch, encoded);
  add(launch, source);
  add(launch, residual);
  add(launch, uint64_t{count});
  add(launch, int{aligned(source, kVectorBytes) && aligned(residual, lanes * sizeof(float))});
  return {};
}

Status decode_launch(KernelLaunch& launch, Dtype dtype, const BlockFormat& format, void* target,
                     const void* first, const void* const* encoded, int source_count,
                     size_t count) {
  if (Status status = floating("decode", dtype); !status) return status;
  const size_t size = size_of(dtype), lanes = kVectorBytes / size;
  Sources all;
  if (Status status = make_sources(all, "decode", encoded, source_count, kVectorBytes); !status) {
    return status;
  }
  for (const void* pointer : {static_cast<const void*>(target), first}) {
    if (!aligned(pointer, size)) return misaligned("decode", size, pointer);
  }
  launch.kernel = coder("decode_kernel", dtype, format);
  set_blocks(launch, (count + lanes - 1) / lanes);
  add(launch, target);
  add(launch, first);
  add(launch, all);
  add(launch, source_count);
  add(launch, uint64_t{count});
  add(launch, int{aligned(target, kVectorBytes) && aligned(first, kVectorBytes)});
  return {};
}

}  // namespace hetcomm
