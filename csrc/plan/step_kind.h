#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace hetcomm {

class Terms;
struct Step;

// Who carries out a step.
enum class Performer : uint8_t {
  island,  // the engine of the rank's island, together with its other members
  link,    // the transport, together with the peer
  rank     // the rank itself, on its processor or its device
};

// The ranges of one step as addresses of this rank.
struct Operands {
  std::vector<const void*> sources;
  void* target = nullptr;
  size_t count = 0;  // elements of the target
};

// Carries out steps of Performer::rank for one plan: the host's processor, or a device.
class Processor {
 public:
  virtual ~Processor() = default;
  virtual Status copy(const Step& step, const Operands& operands) = 0;
  virtual Status reduce(const Step& step, const Operands& operands) = 0;
  // For kinds with Memory::staging: target = function(source), both of as many bytes.
  using Function = void (*)(std::byte* target, const std::byte* source, size_t bytes);
  virtual Status apply(Function function, const Step& step, const Operands& operands) = 0;
};

// Everything about one kind of step; steps.h has a row for each kind. The builder, lowering to
// staging, checker, cost model, executor and texts go by this row and by nothing else.
struct StepKind {
  enum class Sources : uint8_t { none, one, some };
  // Where a rank with device memory may carry out a step of its own.
  enum class Memory : uint8_t {
    between,  // a copy: between device memory and staging, or within device memory
    either,   // in device memory where the device has kernels, else in staging
    staging   // in staging alone, by the host
  };

  const char* name;
  Performer performer;
  Sources sources = Sources::none;
  bool reduces = false;  // combines what it reads by the reduction of the plan
  bool to_all = false;   // island: every member's target is written, else the target on `to`
  bool sends = false;    // link: from the source to the peer, else from the peer to the target
  Memory memory = Memory::between;  // rank
  // What it makes of an element that it read or combined, in symbols; null: nothing.
  int (*effect)(Terms& terms, int term) = nullptr;
  // Performer::rank: carries it out.
  Status (*run)(Processor& processor, const Step& step, const Operands& operands) = nullptr;
};

// Every kind of step, as plans refer to it.
const std::vector<const StepKind*>& step_kinds();

}  // namespace hetcomm
