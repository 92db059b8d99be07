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
// Asks collective libraries to connect in set-up: the first collective would wait for other
// members. A library reads the variable once per process. True if the user has not set it.
bool ask_ccl_to_connect();

struct CclOptions {
  std::shared_ptr<Device> device;
  int member = 0;  // this rank's index in the island
  int members = 1;
  std::vector<int> ranks;      // the rank of each member, for messages; empty: the index itself
  std::string unique_id;       // of make_ccl_id() on one member
  std::string network;         // "IB", "Socket"; empty: the library's choice
  CclEnvironment environment;  // such as NCCL_IB_HCA
  int min_ctas = 0;            // 0: the library's choice
  int max_ctas = 0;
  bool blocking = true;  // with a blocking communicator, see CclCommunicator
  std::chrono::nanoseconds call_bound = std::chrono::seconds(30);  // of a call into the library
  // Puts a call in words, "all_reduce sum float32 x 100".
  std::function<std::string(const CallDescriptor&)> describe_call;
  // During set-up: the failure of another rank, if one is known before the deadline. May be empty.
  std::function<Status(const Deadline&)> failure;

  int rank(int index) const { return ranks.empty() ? index : ranks[index]; }
};

// HETCOMM_CCL, "max_ctas=8,blocking=0". Throws Error(invalid_argument).
void read_ccl_settings(CclOptions& options);
// The settings that must be equal on all members, for comparison.
std::string describe_ccl_settings(const CclOptions& options);

constexpr size_t kCclIdBytes = 128;
// The address at which the members of one communicator meet, as bytes. One member makes it and
// tells the other members. Throws Error(vendor) if there is no usable library.
std::string make_ccl_id(const Vendor& vendor, const CclEnvironment& environment = {});

// The engine for device memory: collectives of a library with NCCL's ABI, on a stream of its own.
// Opening waits for all members. Throws Error(timeout) if some are missing, and Error(vendor) with
// the library's words otherwise. The engine's calls return at once. Giving up and closing take a
// few seconds at most, whatever the library does.
std::unique_ptr<Island> open_ccl_island(const CclOptions& options, Deadline deadline);

// "NCCL 2.28.3 (/usr/lib/libnccl.so.2)"; throws Error(vendor).
std::string ccl_version(const Vendor& vendor);

}  // namespace hetcomm
