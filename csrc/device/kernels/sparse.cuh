// Blocks of which the elements of largest magnitude are kept: codec/sparse_codec.cc has the layout.
// A team encodes or decodes a block. Lane i has the elements i, i + 32, ... of a block, so a ballot
// is a word of the bits of 32 neighbours. Encoded data are read and written by two bytes, because
// the bytes of a block are any multiple of two.

// A block of one length.
struct SparseBlock {
  int kept;     // elements
  int numbers;  // whether the places of kept elements are numbers, otherwise bits
};

constexpr int kSparseSteps = kBlock / kTeamThreads;  // elements of a thread

HETCOMM_FUNCTION int sparse_words(int count) { return (count + 63) / 64 * 2; }  // of 32 bits

// In units of two bytes.
HETCOMM_FUNCTION int sparse_places(const SparseBlock& block, int count) {
  return block.numbers ? block.kept : 2 * sparse_words(count);
}
HETCOMM_FUNCTION Count sparse_size(const SparseBlock& block, int count) {
  return sparse_places(block, count) + 2 * block.kept;
}

// NaNs are equal, and greater than numbers.
HETCOMM_FUNCTION int sparse_magnitude(float value) {
  const int magnitude = bit_cast<int>(value) & 0x7fffffff;
  return magnitude > 0x7f800000 ? 0x7f800001 : magnitude;
}

// Encodes source + residual; the residual then has what was lost. The residual may be null.
template <class T>
__global__ void sparse_encode_kernel(unsigned short* encoded, const typename T::Stored* source,
                                     float* residual, Count count, const SparseBlock whole,
                                     const SparseBlock last) {
  const int lane = lane_of_thread();
  each_block_of_team<kBlock>(count, [&](Count number, Count begin, int n) {
    const SparseBlock block = n == kBlock ? whole : last;
    float values[kSparseSteps];
#pragma unroll
    for (int step = 0; step < kSparseSteps; ++step) {
      const int at = step * kTeamThreads + lane;
      values[step] = 0;
      if (at >= n) continue;
      values[step] = T::widen(source[begin + at]);
      if (residual != nullptr) values[step] = canonical(values[step] + residual[begin + at]);
    }
    // The greatest bound that `kept` magnitudes reach, from the highest bit to the lowest.
    int bound = 0, reached = n;
    for (int bit = 30; bit >= 0 && reached != block.kept; --bit) {
      const int candidate = bound | 1 << bit;
      int found = 0;
#pragma unroll
      for (int step = 0; step < kSparseSteps; ++step) {
        found += step * kTeamThreads + lane < n && sparse_magnitude(values[step]) >= candidate;
      }
      found = team_sum(found);
      if (found < block.kept) continue;
      bound = candidate;
      reached = found;
    }
    int equal = 0;
#pragma unroll
    for (int step = 0; step < kSparseSteps; ++step) {
      equal += step * kTeamThreads + lane < n && sparse_magnitude(values[step]) == bound;
    }
    // Too many may reach the bound. Of those that equal the bound the first are kept.
    const int most_equal = team_sum(equal) - (reached - block.kept);
    unsigned short* const places = encoded + number * sparse_size(whole, kBlock);
    unsigned short* const numbers = places + sparse_places(block, n);
    const int words = sparse_words(n);
    int seen_equal = 0, chosen_before = 0;
#pragma unroll
    for (int step = 0; step < kSparseSteps; ++step) {
      const int at = step * kTeamThreads + lane;
      const int magnitude = sparse_magnitude(values[step]);
      const unsigned equals = ballot(at < n && magnitude == bound);
      const bool first_equals =
          magnitude == bound && seen_equal + count_before(equals) < most_equal;
      const bool chosen = at < n && (magnitude > bound || first_equals);
      const unsigned word = ballot(chosen);
      const int place = chosen_before + count_before(word);
      seen_equal += count_bits(equals);
      chosen_before += count_bits(word);
      if (!block.numbers && lane < 2 && step < words) {
        places[2 * step + lane] = static_cast<unsigned short>(word >> 16 * lane);
      }
      if (chosen) {
        const unsigned bits = bit_cast<unsigned>(canonical(values[step]));
        if (block.numbers) places[place] = static_cast<unsigned short>(at);
        numbers[2 * place] = static_cast<unsigned short>(bits);
        numbers[2 * place + 1] = static_cast<unsigned short>(bits >> 16);
      }
      if (residual != nullptr && at < n) {
        residual[begin + at] = chosen || magnitude >= 0x7f800000 ? 0 : values[step];
      }
    }
  });
}

// The places of a block's kept elements: bit i % 32 of word i / 32. Lane i has words i and i + 32.
// False for places that no encoder made.
HETCOMM_FUNCTION bool sparse_read_places(unsigned (&words)[2], const unsigned short* places,
                                         const SparseBlock& block, int count) {
  const int lane = lane_of_thread();
  bool ordered = true;
  words[0] = words[1] = 0;
  if (block.numbers) {
    for (int i = 0, last = -1; i < block.kept; ++i) {
      const int place = places[i];
      ordered = ordered && place > last;
      last = place;
      const unsigned bit = 1u << place % 32;
      if (place / 32 == lane) words[0] |= bit;
      if (place / 32 == lane + 32) words[1] |= bit;
    }
  }
  int found = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int word = lane + 32 * half, valid = count - 32 * word;
    if (!block.numbers && word < sparse_words(count)) {
      words[half] = places[2 * word] | static_cast<unsigned>(places[2 * word + 1]) << 16;
    }
    const unsigned mask = valid >= 32 ? ~0u : valid <= 0 ? 0 : (1u << valid) - 1;
    if ((words[half] & ~mask) != 0) ordered = false;
    found += count_bits(words[half] & mask);
  }
  return team_sum(found) == block.kept && ballot(!ordered) == 0;
}

// target[i] = (first[i] +) the sum of the sources, in their order, in float32, rounded once. A
// block that no encoder made gives NaNs.
template <class T>
__global__ void sparse_decode_kernel(typename T::Stored* target, const typename T::Stored* first,
                                     const Sources sources, int source_count, Count count,
                                     const SparseBlock whole, const SparseBlock last) {
  const int lane = lane_of_thread();
  each_block_of_team<kBlock>(count, [&](Count number, Count begin, int n) {
    const SparseBlock block = n == kBlock ? whole : last;
    float sum[kSparseSteps];
#pragma unroll
    for (int step = 0; step < kSparseSteps; ++step) {
      const int at = step * kTeamThreads + lane;
      sum[step] = first != nullptr && at < n ? T::widen(first[begin + at]) : 0;
    }
    for (int s = 0; s < source_count; ++s) {
      const unsigned short* const places =
          static_cast<const unsigned short*>(sources.at[s]) + number * sparse_size(whole, kBlock);
      const unsigned short* const numbers = places + sparse_places(block, n);
      unsigned words[2];
      const bool valid = sparse_read_places(words, places, block, n);
      int before = 0;
#pragma unroll
      for (int step = 0; step < kSparseSteps; ++step) {
        const unsigned word = static_cast<unsigned>(
            value_of(static_cast<int>(words[step / 32]), step % kTeamThreads));
        const int place = before + count_before(word);
        before += count_bits(word);
        float value = valid ? 0 : bit_cast<float>(0x7fc00000);
        if (valid && (word >> lane & 1) != 0) {
          value = bit_cast<float>(numbers[2 * place] | static_cast<unsigned>(numbers[2 * place + 1])
                                                           << 16);
        }
        sum[step] = s == 0 && first == nullptr ? value : sum[step] + value;
      }
    }
#pragma unroll
    for (int step = 0; step < kSparseSteps; ++step) {
      const int at = step * kTeamThreads + lane;
      if (at < n) target[begin + at] = T::round(sum[step]);
    }
  });
}
