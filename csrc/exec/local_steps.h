#pragma once

#include "device/device_kernels.h"
#include "plan/plan.h"

namespace hetcomm {

// Carries out a rank's own steps in host memory, at once.
class HostSteps final : public Processor {
 public:
  explicit HostSteps(const Plan& plan) : plan_(plan) {}
  Status copy(const Step& step, const Operands& operands) override;
  Status reduce(const Step& step, const Operands& operands) override;
  Status encode(const Step& step, const Operands& operands) override;
  Status decode(const Step& step, const Operands& operands) override;

 private:
  const Plan& plan_;
};

// Compiles the kernels that the device steps of a plan need. Throws Error(vendor).
void compile_kernels(const DeviceKernels* kernels, const Plan& plan);

// These enqueue a step in device memory.
Status enqueue_reduction(const DeviceKernels& kernels, const Plan& plan, const Step& step,
                         const Operands& operands, Stream stream);
Status enqueue_encoding(const DeviceKernels& kernels, const Step& step, const Operands& operands,
                        Stream stream);
Status enqueue_decoding(const DeviceKernels& kernels, const Step& step, const Operands& operands,
                        Stream stream);

}  // namespace hetcomm
