#pragma once

#include <climits>
#include <cstddef>

namespace hetcomm {

// The part of the NCCL ABI that hetcomm calls, as in NCCL 2.18 and every later NCCL and RCCL.
// Declared here so that a build needs no vendor's header.
namespace nccl {

struct Communicator;  // ncclComm

struct UniqueId {
  char bytes[128];
};

enum Result : int {
  success = 0,
  internal_error = 3,
  invalid_argument = 4,
  remote_error = 6,
  in_progress = 7,
};

inline constexpr int kNoColor = -1;  // of a split: this member gets no communicator

using DataType = int;  // DtypeRow::ccl
inline constexpr DataType kBytes = 0;

// RedOpCreatePreMulSum makes further operations, for one communicator each.
enum RedOp : int { sum = 0, prod = 1, max = 2, min = 3, avg = 4 };

enum ScalarResidence : int { scalar_host_immediate = 1 };

// The layout of 2.18. Libraries read `size` bytes and use defaults for later fields.
struct Config {
  static constexpr int kUndefined = INT_MIN;

  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21800;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int later = kUndefined;  // padding in 2.18, a field (the traffic class) from 2.26 on
};
static_assert(sizeof(Config) == 48 && offsetof(Config, net_name) == 32);

}  // namespace nccl
}  // namespace hetcomm
