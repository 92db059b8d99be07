// What a team of 32 neighbouring threads of one warp or wavefront tell each other. All 32 call.

constexpr int kTeamThreads = 32;

HETCOMM_FUNCTION int lane_of_thread() { return static_cast<int>(threadIdx.x) % kTeamThreads; }

// The value of the thread whose lane differs by `mask`, in one bit or several.
HETCOMM_FUNCTION int exchanged(int value, int mask) {
#ifdef HETCOMM_CUDA
  return __shfl_xor_sync(0xffffffffu, value, mask, kTeamThreads);
#else
  return __shfl_xor(value, mask, kTeamThreads);
#endif
}

HETCOMM_FUNCTION int value_of(int value, int lane) {
#ifdef HETCOMM_CUDA
  return __shfl_sync(0xffffffffu, value, lane, kTeamThreads);
#else
  return __shfl(value, lane, kTeamThreads);
#endif
}

// Bit i is the condition of lane i.
HETCOMM_FUNCTION unsigned ballot(bool condition) {
#ifdef HETCOMM_CUDA
  return __ballot_sync(0xffffffffu, condition);
#else
  return static_cast<unsigned>(__ballot(condition) >> (__lane_id() & 32));  // one of two teams
#endif
}

HETCOMM_FUNCTION int count_bits(unsigned bits) {
#ifdef HETCOMM_CUDA
  return __popc(bits);
#else
  return __builtin_popcount(bits);
#endif
}

// The number of set bits of the lanes before this one.
HETCOMM_FUNCTION int count_before(unsigned bits) {
  return count_bits(bits & ((1u << lane_of_thread()) - 1));
}

HETCOMM_FUNCTION int team_sum(int value) {
#pragma unroll
  for (int mask = kTeamThreads / 2; mask > 0; mask /= 2) value += exchanged(value, mask);
  return value;
}

HETCOMM_FUNCTION Count team_sum(Count value) {
#pragma unroll
  for (int mask = kTeamThreads / 2; mask > 0; mask /= 2) {
    const auto low = static_cast<unsigned>(exchanged(static_cast<int>(value), mask));
    const auto high = static_cast<unsigned>(exchanged(static_cast<int>(value >> 32), mask));
    value += static_cast<Count>(high) << 32 | low;
  }
  return value;
}

// Of `threads` neighbouring threads, a power of two.
template <int threads>
HETCOMM_FUNCTION int greatest_of(int value) {
#if defined(HETCOMM_CUDA) && __CUDA_ARCH__ >= 800
  constexpr bool kByInstruction = threads == kTeamThreads;
  if constexpr (kByInstruction) value = __reduce_max_sync(0xffffffffu, value);
#else
  constexpr bool kByInstruction = false;
#endif
#pragma unroll
  for (int mask = kByInstruction ? 0 : threads / 2; mask > 0; mask /= 2) {
    const int other = exchanged(value, mask);
    value = other > value ? other : value;
  }
  return value;
}

// Calls work(number, begin, n) for each block of `block` elements, the last of which may be
// shorter: its number, its first element and its elements. A team has a block at a time.
template <int block, class Work>
HETCOMM_FUNCTION void each_block_of_team(Count count, const Work& work) {
  for (Count number = first_index() / kTeamThreads; number * block < count;
       number += all_threads() / kTeamThreads) {
    const Count begin = number * block;
    work(number, begin, count - begin < block ? static_cast<int>(count - begin) : block);
  }
}
