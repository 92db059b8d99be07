#pragma once

namespace hetcomm {

// The instruction sets that kernels of the host are compiled for. The best is last.
enum class InstructionSet { baseline, avx2, avx512 };

// The best one of this processor, or that of HETCOMM_ISA. All give the same bits. The first call
// throws Error(invalid_argument) if HETCOMM_ISA is not usable.
InstructionSet instruction_set();
const char* name(InstructionSet set);

}  // namespace hetcomm
