#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "bootstrap/rail_probe.h"
#include "exec/executor.h"
#include "health/health.h"
#include "plan/planner.h"

namespace hetcomm {

// The caller's description of a group and its rank there.
struct BootstrapOptions {
  int rank = 0;
  int size = 1;
  std::string name = "default";                                // for messages
  std::chrono::nanoseconds timeout{std::chrono::minutes(30)};  // of set-up and of operations
  std::shared_ptr<Executor> executor;                          // of this process if null
  std::string host;    // identity of the host, probed if empty
  std::string vendor;  // of the buffers' memory; if empty, HETCOMM_VENDOR or cpu
  std::string codec;   // of long messages between hosts; if empty, HETCOMM_BRIDGE_CODEC
  int device = -1;     // index among the vendor's; HETCOMM_DEVICE or LOCAL_RANK if negative
  // Called now and then while set-up waits for other ranks; what it throws ends set-up.
  std::function<void()> look;
};

// One rank's part of a group. bootstrap() returns it finished; the communicator owns it.
struct Group {
  explicit Group(const BootstrapOptions& options)
      : rank(options.rank),
        size(options.size),
        name(options.name),
        timeout(options.timeout),
        executor(options.executor),
        queue(std::make_shared<RunQueue>(options.size)) {}
  Group(const Group&) = delete;

  const int rank, size;
  const std::string name;
  const std::chrono::nanoseconds timeout;  // of operations, unless they have their own
  std::string key;                         // secret with a job key, see make_group_key()
  std::shared_ptr<Executor> executor;
  std::shared_ptr<Device> device;  // of the buffers; null for host memory
  std::shared_ptr<const Topology> topology;
  std::shared_ptr<Planner> planner;
  // A planner of this group for a topology with fewer rails.
  std::function<std::shared_ptr<Planner>(std::shared_ptr<const Topology>)> make_planner;
  // The runs, and the paths to all ranks with the engine of the island.
  std::shared_ptr<RunQueue> queue;
  std::shared_ptr<Health> health;               // null in a group of one
  std::optional<RailListeners> rail_listeners;  // closed when this rank leaves
};

}  // namespace hetcomm
