#include "island/ccl/lowering.h"

#include "device/reduce.h"

namespace hetcomm::nccl {
namespace {

// Booleans are bytes of 0 and 1, so that their logic is a maximum or a minimum.
RedOp red_op(Dtype dtype, ReduceOp op) {
  const bool logic = class_of(dtype) == DtypeClass::boolean;
  switch (op) {
    case ReduceOp::sum:
      return logic ? max : sum;
    case ReduceOp::product:
      return logic ? min : prod;
    case ReduceOp::min:
    case ReduceOp::band:
      return min;
    case ReduceOp::average:
      return avg;
    case ReduceOp::premul_sum:  // issue() replaces the operation
      return sum;
    default:
      return max;
  }
}

// Whether `next` begins where `piece` ends.
bool follows(const IslandPiece& piece, const IslandPiece& next) {
  return piece.source_place >= 0 && piece.target_place >= 0 &&
         next.source_place == piece.source_place + piece.count &&
         next.target_place == piece.target_place + piece.count;
}

// Without empty pieces, and with adjacent ones joined. Between two pieces of a sender and a
// receiver the two may list unlike pieces, so both leave theirs as they are.
std::vector<IslandPiece> joined(const IslandCall& call) {
  std::vector<IslandPiece> result;
  for (const IslandPiece& piece : call.pieces) {
    if (piece.count == 0) continue;
    const bool joins = (call.reduces || call.to_all) && !result.empty() &&
                       piece.from == result.back().from && piece.to == result.back().to &&
                       follows(result.back(), piece);
    if (joins) {
      result.back().count += piece.count;
    } else {
      result.push_back(piece);
    }
  }
  return result;
}

// Whether there is one piece of equal size for each member, in member order, and the pieces are
// adjacent at `place`. The last one may be longer.
bool uniform(const std::vector<IslandPiece>& pieces, int members, int IslandPiece::* owner,
             int64_t IslandPiece::* place) {
  if (pieces.size() != static_cast<size_t>(members)) return false;
  for (int i = 0; i < members; ++i) {
    const IslandPiece& piece = pieces[i];
    const bool sized =
        i + 1 < members ? piece.count == pieces[0].count : piece.count >= pieces[0].count;
    const bool fits = sized && piece.*owner == i && piece.*place >= 0 &&
                      piece.*place == pieces[0].*place + i * pieces[0].count;
    if (!fits) return false;
  }
  return true;
}

// What the last of uniform pieces has more than the others; no piece if there is nothing.
std::vector<IslandPiece> rest_of(const std::vector<IslandPiece>& pieces, size_t element_bytes) {
  IslandPiece rest = pieces.back();
  const int64_t skipped = pieces[0].count;
  rest.count -= skipped;
  if (rest.count == 0) return {};
  if (rest.source) rest.source += skipped * element_bytes;
  if (rest.target) rest.target += skipped * element_bytes;
  return {rest};
}

class Lowering {
 public:
  Lowering(const IslandCall& call, int member)
      : bytes_(size_of(call.dtype)),
        type_(row_of(call.dtype).ccl),
        op_(red_op(call.dtype, call.op)),
        member_(member) {}

  void reduces(Function function, const std::byte* source, std::byte* target, int64_t count,
               int root = -1) {
    calls_.push_back({function, source, target, static_cast<size_t>(count), type_, op_, root});
  }
  void moves(Function function, const std::byte* source, std::byte* target, int64_t count,
             int peer = -1) {
    calls_.push_back(
        {function, source, target, static_cast<size_t>(count) * bytes_, kBytes, sum, peer});
  }

  void all_to_all(const IslandPiece& piece) {
    const bool sends = piece.from == member_, receives = piece.to == member_;
    if (sends && receives) {
      if (piece.source != piece.target) {
        moves(Function::copy, piece.source, piece.target, piece.count);
      }
    } else if (sends) {
      moves(Function::send, piece.source, nullptr, piece.count, piece.to);
    } else if (receives) {
      moves(Function::recv, nullptr, piece.target, piece.count, piece.from);
    }
  }

  std::vector<Call> calls() && { return std::move(calls_); }

 private:
  const size_t bytes_;
  const DataType type_;
  const RedOp op_;
  const int member_;
  std::vector<Call> calls_;
};

}  // namespace

const char* name(Function function) {
  constexpr const char* kNames[] = {"AllReduce", "ReduceScatter", "AllGather", "Reduce",
                                    "Broadcast", "Send",          "Recv",      "copy"};
  return kNames[static_cast<size_t>(function)];
}

std::optional<Factor> factor_of(const IslandCall& call) {
  if (call.op != ReduceOp::premul_sum) return {};
  return Factor{row_of(call.dtype).ccl, stored(call.dtype, call.descriptor.factor)};
}

std::vector<Call> lower(const IslandCall& call, int member, int members) {
  std::vector<IslandPiece> pieces = joined(call);
  Lowering lowering(call, member);
  if (call.reduces && call.to_all) {
    for (const IslandPiece& piece : pieces) {
      lowering.reduces(Function::all_reduce, piece.source, piece.target, piece.count);
    }
  } else if (call.reduces) {
    if (uniform(pieces, members, &IslandPiece::to, &IslandPiece::source_place)) {
      lowering.reduces(Function::reduce_scatter, pieces[0].source, pieces[member].target,
                       pieces[0].count);
      pieces = rest_of(pieces, size_of(call.dtype));
    }
    for (const IslandPiece& piece : pieces) {
      lowering.reduces(Function::reduce, piece.source, piece.target, piece.count, piece.to);
    }
  } else if (call.to_all) {
    if (uniform(pieces, members, &IslandPiece::from, &IslandPiece::target_place)) {
      lowering.moves(Function::all_gather, pieces[member].source, pieces[0].target,
                     pieces[0].count);
      pieces = rest_of(pieces, size_of(call.dtype));
    }
    for (const IslandPiece& piece : pieces) {
      lowering.moves(Function::broadcast, piece.source ? piece.source : piece.target, piece.target,
                     piece.count, piece.from);
    }
  } else {
    for (const IslandPiece& piece : pieces) lowering.all_to_all(piece);
  }
  return std::move(lowering).calls();
}

}  // namespace hetcomm::nccl
