#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace hetcomm {

class Terms;
struct Step;

// The performer of a step.
enum class Performer : uint8_t {
  island,  // the engine of the rank's island, together with the other members
  link,    // the transport, together with the peer
  rank     // the rank itself, on its processor or its device
};

// The ranges of one step as addresses of this rank.
struct Operands {
  std::vector<const void*> sources;
  void* target = nullptr;
  size_t count = 0;  // elements of the target
};

// Performs the rank's own steps of one plan: the host's processor, or a device.
class Processor {
 public:
  virtual ~Processor() = default;
  virtual Status copy(const Step& step, const Operands& operands) = 0;
  virtual Status reduce(const Step& step, const Operands& operands) = 0;
  virtual Status encode(const Step& step, const Operands& operands) = 0;
  virtual Status decode(const Step& step, const Operands& operands) = 0;  // and adds
};

// Everything about one kind of step; steps.h has a row for each kind. Builder, lowering, checker,
// cost model, executor and texts go by this row alone.
struct StepKind {
  enum class Sources : uint8_t { none, one, some };
  // The memory in which a rank with device memory performs its own step.
  enum class Memory : uint8_t {
    between,  // a copy: between device memory and staging, or within device memory
    either,   // device memory if the device has kernels, else staging
    coded     // device memory if the device has kernels for the codec, else staging
  };

  const char* name;
  Performer performer;
  Sources sources = Sources::none;
  bool reduces = false;  // combines what it reads by the reduction of the plan
  bool to_all = false;   // island: writes every member's target, else the target on `to`
  bool sends = false;    // link: from the source to the peer, else from the peer to the target
  Memory memory = Memory::between;  // Performer::rank
  bool decodes = false;             // encoded sources are decoded first
  bool encodes = false;             // may write its second source, too: the residual
  // For the checker: maps the symbolic value that the step reads to the value that it writes.
  // Returns Terms::none if the step must not get this value. Null: the step writes what it reads,
  // decoded if it decodes.
  int (*effect)(Terms& terms, const Step& step, int term) = nullptr;
  // Performer::rank: performs the step.
  Status (*run)(Processor& processor, const Step& step, const Operands& operands) = nullptr;
};

// Every kind of step, as plans refer to it.
const std::vector<const StepKind*>& step_kinds();

}  // namespace hetcomm
