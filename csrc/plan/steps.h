#pragma once

#include "codec/codec.h"
#include "plan/plan.h"
#include "plan/step_kind.h"
#include "plan/symbolic.h"

// The kinds of steps. A new kind is one more row here and in `all`. Each shared library has its own
// copy of the rows. Plans use the rows of libhetcomm, so bindings take them from step_kinds().
namespace hetcomm::steps {

// `from` and `to` are ranks of a Piece (plan.h). A reduction reads every member's source. All
// members list the same pieces, but for an all_to_all in a native island. There each lists its own,
// perhaps none. Two members list the pieces between them in one order.

// Every member's target = sum of the sources.
inline constexpr StepKind island_all_reduce{
    .name = "island_all_reduce", .performer = Performer::island, .reduces = true, .to_all = true};
// Target on `to` = sum of the sources.
inline constexpr StepKind island_reduce_scatter{
    .name = "island_reduce_scatter", .performer = Performer::island, .reduces = true};
// Every member's target = source on `from`.
inline constexpr StepKind island_all_gather{
    .name = "island_all_gather", .performer = Performer::island, .to_all = true};
// Target on `to` = source on `from`.
inline constexpr StepKind island_all_to_all{.name = "island_all_to_all",
                                            .performer = Performer::island};

// A send and its receive have the same ranks and tag.
inline constexpr StepKind send{
    .name = "send", .performer = Performer::link, .sources = StepKind::Sources::one, .sends = true};
inline constexpr StepKind recv{.name = "recv", .performer = Performer::link};

inline constexpr StepKind copy{
    .name = "copy",
    .performer = Performer::rank,
    .sources = StepKind::Sources::one,
    .run = [](Processor& processor, const Step& step, const Operands& operands) {
      return processor.copy(step, operands);
    }};

// target = sources[0] op sources[1] op ... The target may be one of the sources.
inline constexpr StepKind reduce{
    .name = "reduce",
    .performer = Performer::rank,
    .sources = StepKind::Sources::some,
    .reduces = true,
    .memory = StepKind::Memory::either,
    .run = [](Processor& processor, const Step& step, const Operands& operands) {
      return processor.reduce(step, operands);
    }};

// The target has a codec, the source has none. A second source is the residual.
inline constexpr StepKind encode{
    .name = "encode",
    .performer = Performer::rank,
    .sources = StepKind::Sources::some,
    .memory = StepKind::Memory::coded,
    .encodes = true,
    .effect = [](Terms& terms, const Step& step,
                 int term) { return terms.encode(term, step.target.codec, &step); },
    .run = [](Processor& processor, const Step& step,
              const Operands& operands) { return processor.encode(step, operands); }};
// The source has a codec, the target has none.
inline constexpr StepKind decode{
    .name = "decode",
    .performer = Performer::rank,
    .sources = StepKind::Sources::one,
    .memory = StepKind::Memory::coded,
    .decodes = true,
    .run = [](Processor& processor, const Step& step, const Operands& operands) {
      return processor.decode(step, operands);
    }};
// target = sum of the sources, of which the first alone may be plain. For a sum and a lossy codec.
inline constexpr StepKind decode_reduce{
    .name = "decode_reduce",
    .performer = Performer::rank,
    .sources = StepKind::Sources::some,
    .reduces = true,
    .memory = StepKind::Memory::coded,
    .decodes = true,
    .run = [](Processor& processor, const Step& step, const Operands& operands) {
      return processor.decode(step, operands);
    }};

inline constexpr const StepKind* all[] = {&island_all_reduce,
                                          &island_reduce_scatter,
                                          &island_all_gather,
                                          &island_all_to_all,
                                          &send,
                                          &recv,
                                          &copy,
                                          &reduce,
                                          &encode,
                                          &decode,
                                          &decode_reduce};

}  // namespace hetcomm::steps
