#pragma once

#include <string>

#include "base/status.h"
#include "device/vendor.h"
#include "island/ccl/abi.h"

namespace hetcomm {

// Every function of a collective library that hetcomm calls: X(name, result, parameters). The
// symbol is "nccl" and the name.
// clang-format off
#define HETCOMM_CCL_SYMBOLS(X) \
  X(GetVersion, nccl::Result, (int* version)) \
  X(GetUniqueId, nccl::Result, (nccl::UniqueId* id)) \
  X(GetErrorString, const char*, (nccl::Result result)) \
  X(GetLastError, const char*, (nccl::Communicator* communicator)) \
  X(CommInitRankConfig, nccl::Result, (nccl::Communicator** communicator, int members, \
                                       nccl::UniqueId id, int member, nccl::Config* config)) \
  X(CommGetAsyncError, nccl::Result, (nccl::Communicator* communicator, nccl::Result* result)) \
  X(CommCount, nccl::Result, (nccl::Communicator* communicator, int* members)) \
  X(CommFinalize, nccl::Result, (nccl::Communicator* communicator)) \
  X(CommDestroy, nccl::Result, (nccl::Communicator* communicator)) \
  X(CommAbort, nccl::Result, (nccl::Communicator* communicator)) \
  X(GroupStart, nccl::Result, ()) \
  X(GroupEnd, nccl::Result, ()) \
  X(RedOpCreatePreMulSum, nccl::Result, (nccl::RedOp* op, void* scalar, nccl::DataType type, \
                                         nccl::ScalarResidence residence, \
                                         nccl::Communicator* communicator)) \
  X(RedOpDestroy, nccl::Result, (nccl::RedOp op, nccl::Communicator* communicator)) \
  X(AllReduce, nccl::Result, (const void* source, void* target, size_t count, nccl::DataType type, \
                              nccl::RedOp op, nccl::Communicator* communicator, void* stream)) \
  X(ReduceScatter, nccl::Result, (const void* source, void* target, size_t count, \
                                  nccl::DataType type, nccl::RedOp op, \
                                  nccl::Communicator* communicator, void* stream)) \
  X(AllGather, nccl::Result, (const void* source, void* target, size_t count, nccl::DataType type, \
                              nccl::Communicator* communicator, void* stream)) \
  X(Reduce, nccl::Result, (const void* source, void* target, size_t count, nccl::DataType type, \
                           nccl::RedOp op, int root, nccl::Communicator* communicator, \
                           void* stream)) \
  X(Broadcast, nccl::Result, (const void* source, void* target, size_t count, nccl::DataType type, \
                              int root, nccl::Communicator* communicator, void* stream)) \
  X(Send, nccl::Result, (const void* source, size_t count, nccl::DataType type, int peer, \
                         nccl::Communicator* communicator, void* stream)) \
  X(Recv, nccl::Result, (void* target, size_t count, nccl::DataType type, int peer, \
                         nccl::Communicator* communicator, void* stream))

// Null where a library lacks them.
#define HETCOMM_CCL_OPTIONAL_SYMBOLS(X) \
  X(CommSplit, nccl::Result, (nccl::Communicator* communicator, int color, int key, \
                              nccl::Communicator** made, nccl::Config* config)) \
  X(CommRegister, nccl::Result, (nccl::Communicator* communicator, void* buffer, size_t bytes, \
                                 void** registration)) \
  X(CommDeregister, nccl::Result, (nccl::Communicator* communicator, void* registration))
// clang-format on

// The functions of one vendor's collective library, called as `library.AllReduce(...)`. Loaded at
// first use and kept until the process ends. Thread-safe.
struct CclLibrary {
#define X(name, result, parameters) result(*name) parameters = nullptr;
  HETCOMM_CCL_SYMBOLS(X)
  HETCOMM_CCL_OPTIONAL_SYMBOLS(X)
#undef X
  const Vendor* vendor = nullptr;
  std::string path;        // of the file that was loaded
  std::string version;     // "NCCL 2.28.3"
  int version_number = 0;  // 22803

  // "NCCL 2.28.3: ncclAllReduce: unhandled system error: <the library's last words>".
  std::string failure(const std::string& function, nccl::Result result) const;
};

// Throws Error(vendor) if there is no usable library. A later call tries again.
const CclLibrary& ccl_library(const Vendor& vendor);

}  // namespace hetcomm
