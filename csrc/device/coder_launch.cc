#include "device/coder_launch.h"

#include "base/encoded_header.h"
#include "device/launch_parts.h"

namespace hetcomm {

using namespace launch_parts;

namespace {

// With the values and layouts of the same names in device/kernels.
constexpr size_t kTeamThreads = 32, kBlock = 2048, kBatch = 512, kLosslessBlock = 4096;
struct SparseBlock {
  int kept;
  int numbers;
};

std::byte* data_of(void* encoded) { return static_cast<std::byte*>(encoded) + kEncodedHeader; }

// The first arguments of a template.
std::string of_block(const char* kernel, Dtype dtype, const BlockFormat& format) {
  return std::string(kernel) + "<" + qualified(name(dtype)) + ", " + qualified(format.code) + ", " +
         qualified(format.scale) + ", " + std::to_string(format.group);
}

// The threads of a team that encode a group.
size_t members_of(size_t group) { return group < 64 ? 4 : group < 512 ? group / 16 : kTeamThreads; }

// A team for each part of so many elements.
size_t threads_for(size_t count, size_t elements) {
  return (count + elements - 1) / elements * kTeamThreads;
}

// Of a block of `count` elements, 0 to 2048.
SparseBlock sparse_block(const SparseFormat& format, size_t count) {
  if (count == 0) return {0, 0};
  return {static_cast<int>(format.kept(count)), format.numbers(count)};
}

// Of the whole blocks, and of the last one.
void add_blocks(KernelLaunch& launch, const SparseFormat& format, size_t count) {
  add(launch, sparse_block(format, kBlock));
  add(launch, sparse_block(format, count % kBlock));
}

std::string of_exponents(const char* kernel, Dtype dtype) {
  const char* const bits = dtype == Dtype::bfloat16  ? "Bfloat16Bits"
                           : dtype == Dtype::float16 ? "Float16Bits"
                                                     : "Float32Bits";
  return std::string(kernel) + "<" + qualified(bits) + ">";
}

// A team for each block. Small blocks of threads spread few teams over all of a device.
void set_teams(KernelLaunch& launch, size_t count, size_t block) {
  launch.threads = 2 * kTeamThreads;
  set_blocks(launch, threads_for(count, block));
}

struct Encoding {
  Dtype dtype;
  void* encoded;
  const void* source;
  float* residual;
  size_t count;
};

// What every encoder of a lossy codec takes first.
void add_operands(KernelLaunch& launch, const Encoding& call) {
  add(launch, data_of(call.encoded));
  add(launch, call.source);
  add(launch, call.residual);
  add(launch, uint64_t{call.count});
}

std::vector<KernelLaunch> launches_of(const BlockFormat& format, const Encoding& call) {
  const bool vectors = aligned(call.source, kVectorBytes) && aligned(call.residual, kVectorBytes);
  KernelLaunch launch;
  launch.kernel = of_block("encode_kernel", call.dtype, format) +
                  (call.residual != nullptr ? ", true>" : ", false>");
  const size_t group = format.group;
  set_blocks(launch, threads_for(call.count, kTeamThreads / members_of(group) * group));
  add_operands(launch, call);
  add(launch, int{vectors});
  return {launch};
}

std::vector<KernelLaunch> launches_of(const SparseFormat& format, const Encoding& call) {
  KernelLaunch launch;
  launch.kernel = "sparse_encode_kernel<" + qualified(name(call.dtype)) + ">";
  set_teams(launch, call.count, kBlock);
  add_operands(launch, call);
  add_blocks(launch, format, call.count);
  return {launch};
}

std::vector<KernelLaunch> launches_of(const ExponentFormat&, const Encoding& call) {
  std::vector<KernelLaunch> both;
  for (const char* kernel : {"lossless_measure_kernel", "lossless_encode_kernel"}) {
    KernelLaunch& launch = both.emplace_back();
    launch.kernel = of_exponents(kernel, call.dtype);
    set_teams(launch, call.count, kLosslessBlock);
    add(launch, call.encoded);
    add(launch, call.source);
    add(launch, uint64_t{call.count});
  }
  return both;
}

struct Decoding {
  Dtype dtype;
  void* target;
  const void* first;
  const Sources& data;  // behind the headers
  int source_count;
  size_t count;
};

// What every decoder that adds takes first.
void add_operands(KernelLaunch& launch, const Decoding& call) {
  add(launch, call.target);
  add(launch, call.first);
  add(launch, call.data);
  add(launch, call.source_count);
  add(launch, uint64_t{call.count});
}

KernelLaunch launch_of(const BlockFormat& format, const Decoding& call) {
  KernelLaunch launch;
  launch.kernel = of_block("decode_kernel", call.dtype, format) + ">";
  set_blocks(launch, threads_for(call.count, kBatch));
  add_operands(launch, call);
  add(launch, int{aligned(call.target, kVectorBytes) && aligned(call.first, kVectorBytes)});
  return launch;
}

KernelLaunch launch_of(const SparseFormat& format, const Decoding& call) {
  KernelLaunch launch;
  launch.kernel = "sparse_decode_kernel<" + qualified(name(call.dtype)) + ">";
  set_teams(launch, call.count, kBlock);
  add_operands(launch, call);
  add_blocks(launch, format, call.count);
  return launch;
}

KernelLaunch launch_of(const ExponentFormat&, const Decoding& call) {
  KernelLaunch launch;
  launch.kernel = of_exponents("lossless_decode_kernel", call.dtype);
  set_teams(launch, call.count, kLosslessBlock);
  add(launch, call.target);
  add(launch, static_cast<const std::byte*>(call.data.at[0]) - kEncodedHeader);
  add(launch, uint64_t{call.count});
  return launch;
}

}  // namespace

Status encode_launches(std::vector<KernelLaunch>& launches, Dtype dtype, const DeviceFormat& format,
                       void* encoded, const void* source, float* residual, size_t count) {
  if (Status status = floating("encode", dtype); !status) return status;
  const size_t size = size_of(dtype);
  if (!aligned(source, size)) return misaligned("encode", size, source);
  if (!aligned(residual, sizeof(float))) return misaligned("encode", sizeof(float), residual);
  if (!aligned(encoded, kVectorBytes)) return misaligned("encode", kVectorBytes, encoded);
  const Encoding call{dtype, encoded, source, residual, count};
  launches = std::visit([&](const auto& kind) { return launches_of(kind, call); }, format.kind);
  return {};
}

Status decode_launch(KernelLaunch& launch, Dtype dtype, const DeviceFormat& format, void* target,
                     const void* first, const void* const* encoded, int source_count,
                     size_t count) {
  if (Status status = floating("decode", dtype); !status) return status;
  Sources data;
  if (Status status = make_sources(data, "decode", encoded, source_count, kVectorBytes); !status) {
    return status;
  }
  for (int s = 0; s < source_count; ++s) data.at[s] = data_of(const_cast<void*>(data.at[s]));
  const size_t size = size_of(dtype);
  for (const void* pointer : {static_cast<const void*>(target), first}) {
    if (!aligned(pointer, size)) return misaligned("decode", size, pointer);
  }
  if (std::holds_alternative<ExponentFormat>(format.kind) &&
      (source_count != 1 || first != nullptr)) {
    return Status(Code::invalid_argument,
                  "device decode: a codec without loss adds nothing; expected one source");
  }
  const Decoding call{dtype, target, first, data, source_count, count};
  launch = std::visit([&](const auto& kind) { return launch_of(kind, call); }, format.kind);
  return {};
}

}  // namespace hetcomm
