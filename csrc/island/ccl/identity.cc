// The version of a collective library, and the address at which members meet.
#include <memory>

#include "island/ccl/ccl.h"
#include "island/ccl/detached.h"
#include "island/ccl/library.h"
#include "island/ccl/library_log.h"

namespace hetcomm {
namespace {

constexpr auto kIdBound = std::chrono::seconds(30);

}  // namespace

std::string ccl_version(const Vendor& vendor) {
  const CclLibrary& library = ccl_library(vendor);
  return library.version + " (" + library.path + ")";
}

std::string make_ccl_id(const Vendor& vendor, const CclEnvironment& environment) {
  const CclLibrary& library = ccl_library(vendor);
  set_ccl_environment(environment, vendor);
  ask_ccl_to_connect();
  LibraryLog listening;  // this may be the library's first call
  struct Made {
    nccl::UniqueId id;
    nccl::Result result;
    std::string text;
  };
  auto made = std::make_shared<Made>();
  Detached thread([&library, made] {  // listens on a network, perhaps by a plug-in
    made->result = library.GetUniqueId(&made->id);
    if (made->result != nccl::success) {
      made->text = library.failure("ncclGetUniqueId", made->result);
    }
  });
  if (!thread.wait(Deadline(kIdBound))) {
    throw Error(Code::timeout, library.version +
                                   ": expected ncclGetUniqueId to return within 30 s; "
                                   "NCCL_DEBUG=INFO shows what it waits for");
  }
  if (made->result != nccl::success) {
    throw Error(Code::vendor,
                made->text + "; NCCL_SOCKET_IFNAME names the interface on which members meet");
  }
  return std::string(made->id.bytes, sizeof made->id.bytes);
}

}  // namespace hetcomm
