// Element-wise kernels: reductions, scaling and casts. If the addresses allow, a memory access of a
// thread takes a vector of at most 16 bytes; elements before and after vectors are single. All
// loads of a step come before its stores, because the target may be one of the sources.

typedef unsigned long long Count;

constexpr int kVectorBytes = 16;
constexpr int kMostSources = 256;  // kernel arguments have 4 KiB

// The addresses of up to kMostSources buffers, passed by value.
struct Sources {
  const void* at[kMostSources];
};

// How `count` elements are cut: `head` elements, `vectors` whole vectors that begin at multiples of
// 16 bytes, and the rest.
struct Cut {
  Count count, head, vectors;
};

template <class T, int lanes>
struct alignas(sizeof(T) * lanes) Vector {
  T lane[lanes];
};

HETCOMM_FUNCTION Count first_index() {
  return static_cast<Count>(blockIdx.x) * blockDim.x + threadIdx.x;
}
HETCOMM_FUNCTION Count all_threads() { return static_cast<Count>(gridDim.x) * blockDim.x; }

enum class Op { sum, product, min, max, band, bor, bxor };

template <class T, Op op>
HETCOMM_FUNCTION typename T::Wide apply(typename T::Wide a, typename T::Wide b) {
  using Wide = typename T::Wide;
  using M = typename T::Modular;
  if constexpr (op == Op::sum && __is_base_of(Boolean, T)) {
    return a | b;
  } else if constexpr (op == Op::sum) {
    return static_cast<Wide>(static_cast<M>(a) + static_cast<M>(b));
  } else if constexpr (op == Op::product) {
    return static_cast<Wide>(static_cast<M>(a) * static_cast<M>(b));
  } else if constexpr (op == Op::min) {  // a NaN on either side stays; of equal values the first
    return b == b ? (b < a ? b : a) : b;
  } else if constexpr (op == Op::max) {
    return b == b ? (b > a ? b : a) : b;
  } else if constexpr (op == Op::band) {
    return static_cast<Wide>(a & b);
  } else if constexpr (op == Op::bor) {
    return static_cast<Wide>(a | b);
  } else {
    return static_cast<Wide>(a ^ b);
  }
}

template <class T, Op op>
HETCOMM_FUNCTION typename T::Stored reduce_one(const Sources& sources, int source_count, Count i) {
  using Stored = typename T::Stored;
  typename T::Wide partial = T::widen(static_cast<const Stored*>(sources.at[0])[i]);
  for (int s = 1; s < source_count; ++s) {
    partial = apply<T, op>(partial, T::widen(static_cast<const Stored*>(sources.at[s])[i]));
  }
  return T::round(partial);
}

template <class T, Op op>
__global__ void reduce_kernel(typename T::Stored* target, const Sources sources, int source_count,
                              const Cut cut) {
  using Stored = typename T::Stored;
  constexpr int kLanes = kVectorBytes / sizeof(Stored);
  constexpr int kSteps = 2;  // vectors of a thread at a time
  using Pack = Vector<Stored, kLanes>;
  const Count stride = all_threads();
  for (Count begin = first_index(); begin < cut.vectors; begin += kSteps * stride) {
    typename T::Wide partial[kSteps][kLanes];
    for (int s = 0; s < source_count; ++s) {
      const Pack* source =
          reinterpret_cast<const Pack*>(static_cast<const Stored*>(sources.at[s]) + cut.head);
      Pack pack[kSteps];
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (begin + step * stride < cut.vectors) pack[step] = source[begin + step * stride];
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
          const typename T::Wide value = T::widen(pack[step].lane[lane]);
          partial[step][lane] = s == 0 ? value : apply<T, op>(partial[step][lane], value);
        }
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (begin + step * stride >= cut.vectors) break;
      Pack pack;
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) pack.lane[lane] = T::round(partial[step][lane]);
      reinterpret_cast<Pack*>(target + cut.head)[begin + step * stride] = pack;
    }
  }
  const Count in_vectors = cut.vectors * kLanes;
  for (Count i = first_index(); i < cut.count - in_vectors; i += stride) {
    const Count at = i < cut.head ? i : i + in_vectors;
    target[at] = reduce_one<T, op>(sources, source_count, at);
  }
}

template <class T, bool divides>
HETCOMM_FUNCTION typename T::Stored scale_one(typename T::Stored stored, double by) {
  using Wide = typename T::Wide;
  const Wide value = T::widen(stored);
  return T::round(divides ? value / static_cast<Wide>(by) : value * static_cast<Wide>(by));
}

template <class T, bool divides>
__global__ void scale_kernel(typename T::Stored* target, const typename T::Stored* source,
                             double by, const Cut cut) {
  using Stored = typename T::Stored;
  constexpr int kLanes = kVectorBytes / sizeof(Stored);
  using Pack = Vector<Stored, kLanes>;
  const Count stride = all_threads();
  for (Count at = first_index(); at < cut.vectors; at += stride) {
    Pack pack = reinterpret_cast<const Pack*>(source + cut.head)[at];
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      pack.lane[lane] = scale_one<T, divides>(pack.lane[lane], by);
    }
    reinterpret_cast<Pack*>(target + cut.head)[at] = pack;
  }
  const Count in_vectors = cut.vectors * kLanes;
  for (Count i = first_index(); i < cut.count - in_vectors; i += stride) {
    const Count at = i < cut.head ? i : i + in_vectors;
    target[at] = scale_one<T, divides>(source[at], by);
  }
}

template <class From, class To>
__global__ void cast_kernel(typename To::Stored* target, const typename From::Stored* source,
                            const Cut cut) {
  constexpr int kWider = sizeof(typename From::Stored) > sizeof(typename To::Stored)
                             ? sizeof(typename From::Stored)
                             : sizeof(typename To::Stored);
  constexpr int kLanes = kVectorBytes / kWider;
  constexpr int kSteps = 4;
  using In = Vector<typename From::Stored, kLanes>;
  using Out = Vector<typename To::Stored, kLanes>;
  const Count stride = all_threads();
  for (Count begin = first_index(); begin < cut.vectors; begin += kSteps * stride) {
    In in[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const Count at = begin + step * stride;
      if (at < cut.vectors) in[step] = reinterpret_cast<const In*>(source + cut.head)[at];
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const Count at = begin + step * stride;
      if (at >= cut.vectors) break;
      Out out;
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        out.lane[lane] = To::round(From::widen(in[step].lane[lane]));
      }
      reinterpret_cast<Out*>(target + cut.head)[at] = out;
    }
  }
  const Count in_vectors = cut.vectors * kLanes;
  for (Count i = first_index(); i < cut.count - in_vectors; i += stride) {
    const Count at = i < cut.head ? i : i + in_vectors;
    target[at] = To::round(From::widen(source[at]));
  }
}
