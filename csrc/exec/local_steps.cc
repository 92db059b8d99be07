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

 private:
  const DeviceKernels* kernels_;
  const Plan& plan_;
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

void compile_kernels(const DeviceKernels* kernels, const Plan& plan) {
  Compilation compilation(kernels, plan);
  for (const Step& step : plan.steps) {
    if (step.kind->performer != Performer::rank || step.in_staging()) continue;
    const Operands nothing{.sources = std::vector<const void*>(step.sources.size())};
    check(step.kind->run(compilation, step, nothing));
  }
}

}  // namespace hetcomm
