#include "exec/local_steps.h"

#include <cstring>

#include "device/reduce.h"

namespace hetcomm {
namespace {

Scale scale_of(const Plan& plan) {
  return rounded(plan.spec.dtype, scale_of(plan.spec, plan.size));
}

// Compiles each kernel by a call with nothing to do.
class Compilation final : public Processor {
 public:
  Compilation(const DeviceKernels* kernels, const Plan& plan) : kernels_(kernels), plan_(plan) {}
  Status copy(const Step&, const Operands&) override { return Status(); }
  Status reduce(const Step& step, const Operands& operands) override {
    return enqueue_reduction(*kernels_, plan_, step, operands, nullptr);
  }
  Status encode(const Step& step, const Operands& operands) override {
    return enqueue_encoding(*kernels_, step, operands, nullptr);
  }
  Status decode(const Step& step, const Operands& operands) override {
    return enqueue_decoding(*kernels_, step, operands, nullptr);
  }

 private:
  const DeviceKernels* kernels_;
  const Plan& plan_;
};

float* residual_of(const Operands& operands) {
  if (operands.sources.size() < 2) return nullptr;
  return static_cast<float*>(const_cast<void*>(operands.sources[1]));
}

// The sources of a step that decodes: the first may be plain.
struct Parts {
  const Codec& codec;
  const void* plain;  // or null
  std::vector<const void*> encoded;

  Parts(const Step& step, const Operands& operands)
      : codec(*step.sources.back().codec),
        plain(step.sources[0].codec ? nullptr : operands.sources[0]),
        encoded(operands.sources.begin() + (step.sources[0].codec ? 0 : 1),
                operands.sources.end()) {}
};

}  // namespace

Status HostSteps::copy(const Step& step, const Operands& operands) {
  std::memmove(operands.target, operands.sources[0], static_cast<size_t>(step.target.bytes()));
  return Status();
}

Status HostSteps::reduce(const Step& step, const Operands& operands) {
  const Spec& spec = plan_.spec;
  const int sources = static_cast<int>(operands.sources.size());
  if (step.scaled) {
    scaled_sum(spec.dtype, scale_of(plan_), operands.target, operands.sources.data(), sources,
               operands.count);
  } else {
    hetcomm::reduce(spec.dtype, combining(spec.op), operands.target, operands.sources.data(),
                    sources, operands.count);
  }
  return Status();
}

Status HostSteps::encode(const Step& step, const Operands& operands) {
  return encode_elements(*step.target.codec, step.target.dtype, operands.target,
                         operands.sources[0], residual_of(operands), operands.count);
}

Status HostSteps::decode(const Step& step, const Operands& operands) {
  const Parts parts(step, operands);
  return sum_elements(parts.codec, step.target.dtype, operands.target, parts.plain, parts.encoded,
                      operands.count);
}

Status enqueue_reduction(const DeviceKernels& kernels, const Plan& plan, const Step& step,
                         const Operands& operands, Stream stream) {
  const Spec& spec = plan.spec;
  if (step.scaled) {
    return kernels.scale(spec.dtype, scale_of(plan), operands.target, operands.sources[0],
                         operands.count, stream);
  }
  return kernels.reduce(spec.dtype, combining(spec.op), operands.target, operands.sources.data(),
                        static_cast<int>(operands.sources.size()), operands.count, stream);
}

Status enqueue_encoding(const DeviceKernels& kernels, const Step& step, const Operands& operands,
                        Stream stream) {
  const Codec& codec = *step.target.codec;
  const Dtype dtype = step.target.dtype;
  float* const residual = residual_of(operands);
  return kernels.encode(dtype, codec.device_format(), operands.target, operands.sources[0],
                        residual, operands.count, stream, [=, &codec] {
                          encode_elements(codec, dtype, operands.target, operands.sources[0],
                                          residual, operands.count);
                        });
}

Status enqueue_decoding(const DeviceKernels& kernels, const Step& step, const Operands& operands,
                        Stream stream) {
  const Parts parts(step, operands);
  const Dtype dtype = step.target.dtype;
  return kernels.decode(
      dtype, parts.codec.device_format(), operands.target, parts.plain, parts.encoded.data(),
      static_cast<int>(parts.encoded.size()), operands.count, stream, [=] {
        sum_or_nan(parts.codec, dtype, operands.target, parts.plain, parts.encoded, operands.count);
      });
}

void compile_kernels(const DeviceKernels* kernels, const Plan& plan) {
  Compilation compilation(kernels, plan);
  for (const Step& step : plan.steps) {
    if (step.kind->performer != Performer::rank || step.in_staging()) continue;
    const Operands nothing{.sources = std::vector<const void*>(step.sources.size())};
    check(step.kind->run(compilation, step, nothing));
  }
}

}  // namespace hetcomm
