#pragma once

#include <array>
#include <cstddef>

#include "base/memory_kind.h"
#include "plan/plan.h"

namespace hetcomm {

// The addresses of the buffers that the plan of one run names.
struct RunMemory {
  std::array<std::byte*, kSpaces> spaces{};  // by Space
  MemoryKind kind = MemoryKind::host;        // of all spaces but staging, which is host memory

  void set(Space space, void* memory) {
    spaces[static_cast<size_t>(space)] = static_cast<std::byte*>(memory);
  }
  std::byte* at(const Range& range) const {
    return spaces[static_cast<size_t>(range.space)] + range.offset;
  }
  MemoryKind kind_of(const Range& range) const {
    return range.space == Space::staging ? MemoryKind::host : kind;
  }
  Operands operands(const Step& step) const {
    Operands operands{{}, at(step.target), static_cast<size_t>(step.target.count)};
    for (const Range& source : step.sources) operands.sources.push_back(at(source));
    return operands;
  }
};

}  // namespace hetcomm
