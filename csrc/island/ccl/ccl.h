#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "island/island.h"

namespace hetcomm {

class Device;
struct Vendor;

// Variables that a collective library reads once per process.
using CclEnvironment = std::map<std::string, std::string>;
// Sets these variables. A variable that the user has set stays, with a warning where it differs.
void set_ccl_environment(const CclEnvironment& environment, const Vendor& vendor);

struct CclOptions {
  std::shared_ptr<Device> device;
  int member = 0;  // this rank's index in the island
  int members = 1;
  std::vector<int> ranks;      // the rank of each member, for messages; empty: the index itself
  std::string unique_id;       // as make_ccl_id gave it on the first member
  std::string network;         // "IB", "Socket"; empty: the library's choice
  CclEnvironment environment;  // such as NCCL_IB_HCA
  int min_ctas = 0;            // 0: the library's choice
  int max_ctas = 0;
  bool blocking = true;        // collectives take the shorter way, see CclCommunicator
  std::chrono::nanoseconds call_bound = std::chrono::seconds(30);  // of a call into the library
  // Puts a call in words, "all_reduce sum float32 x 100".
  std::function<std::string(const CallDescriptor&)> describe_call;
  // The failure of a rank that will not come, if that is known before the deadline; may be empty.
  std::function<Status(const Deadline&)> failure;
};

// HETCOMM_CCL, "max_ctas=8,blocking=0". Throws Error(invalid_argument).
void read_ccl_settings(CclOptions& options);
// What all members must have set alike, for comparison.
std::string describe_ccl_settings(const CclOptions& options);

constexpr size_t kCclIdBytes = 128;
// Where the members of one communicator meet: made by one member, told to the others as bytes.
// Throws Error(vendor) when there is no usable library.
std::string make_ccl_id(const Vendor& vendor, const CclEnvironment& environment = {});

// The engine for device memory: collectives of the vendor's own library (NCCL, RCCL, any with their
// ABI) on a stream of its own; one lane. Opening waits until all members have come. Throws
// Error(timeout) when they have not, Error(vendor) with the library's words otherwise. Its calls
// return at once; giving up and closing wait a few seconds at most, whatever the library does.
std::unique_ptr<Island> open_ccl_island(const CclOptions& options, Deadline deadline);

// "NCCL 2.28.3 (/usr/lib/libnccl.so.2)"; throws Error(vendor).
std::string ccl_version(const Vendor& vendor);

}  // namespace hetcomm
