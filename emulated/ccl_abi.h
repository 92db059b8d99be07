#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

// The emulated part of NCCL's and RCCL's ABI: names, argument order, enum values and structs.
// Handles are void*, enums are int. tests/core/test_emulated_abi.py compares this file with the
// published ABI.

// X(name, (parameters)): every function returns ncclResult_t as int; its symbol begins with "nccl".
#define HETCOMM_EMULATED_CCL(X)                                                  \
  X(GetVersion, (int*))                                                          \
  X(GetUniqueId, (hetcomm::emulated::UniqueId*))                                 \
  X(CommInitRank, (void**, int, hetcomm::emulated::UniqueId, int))               \
  X(CommInitRankConfig,                                                          \
    (void**, int, hetcomm::emulated::UniqueId, int, hetcomm::emulated::Config*)) \
  X(CommSplit, (void*, int, int, void**, hetcomm::emulated::Config*))            \
  X(CommFinalize, (void*))                                                       \
  X(CommDestroy, (void*))                                                        \
  X(CommAbort, (void*))                                                          \
  X(CommGetAsyncError, (void*, int*))                                            \
  X(CommCount, (void*, int*))                                                    \
  X(CommCuDevice, (void*, int*))                                                 \
  X(CommUserRank, (void*, int*))                                                 \
  X(CommRegister, (void*, void*, size_t, void**))                                \
  X(CommDeregister, (void*, void*))                                              \
  X(MemAlloc, (void**, size_t))                                                  \
  X(MemFree, (void*))                                                            \
  X(RedOpCreatePreMulSum, (int*, void*, int, int, void*))                        \
  X(RedOpDestroy, (int, void*))                                                  \
  X(AllReduce, (const void*, void*, size_t, int, int, void*, void*))             \
  X(ReduceScatter, (const void*, void*, size_t, int, int, void*, void*))         \
  X(Reduce, (const void*, void*, size_t, int, int, int, void*, void*))           \
  X(AllGather, (const void*, void*, size_t, int, void*, void*))                  \
  X(Broadcast, (const void*, void*, size_t, int, int, void*, void*))             \
  X(Send, (const void*, size_t, int, int, void*, void*))                         \
  X(Recv, (void*, size_t, int, int, void*, void*))                               \
  X(GroupStart, ())                                                              \
  X(GroupEnd, ())

namespace hetcomm::emulated {

// ncclResult_t
inline constexpr int ccl_success = 0;
inline constexpr int ccl_unhandled_runtime_error = 1;
inline constexpr int ccl_system_error = 2;
inline constexpr int ccl_internal_error = 3;
inline constexpr int ccl_invalid_argument = 4;
inline constexpr int ccl_invalid_usage = 5;
inline constexpr int ccl_remote_error = 6;
inline constexpr int ccl_in_progress = 7;

enum CclType {
  type_int8 = 0,
  type_uint8 = 1,
  type_int32 = 2,
  type_uint32 = 3,
  type_int64 = 4,
  type_uint64 = 5,
  type_float16 = 6,
  type_float32 = 7,
  type_float64 = 8,
  type_bfloat16 = 9,
  type_float8e4m3 = 10,
  type_float8e5m2 = 11,
};

enum CclOp { op_sum = 0, op_product = 1, op_max = 2, op_min = 3, op_average = 4, op_first_own = 5 };
enum CclScalar { scalar_in_device_memory = 0, scalar_immediate = 1 };

inline constexpr int kUndefined = INT_MIN;
inline constexpr int kNoColor = -1;
inline constexpr unsigned kConfigMagic = 0xcafebeef;

struct UniqueId {
  char internal[128];
};

// ncclConfig_t as of 2.28; later versions only append.
struct Config {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cga_cluster_size;
  int min_ctas;
  int max_ctas;
  const char* net_name;
  int split_share;
};

}  // namespace hetcomm::emulated
