#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "bootstrap/member.h"
#include "device/device.h"
#include "exec/executor.h"
#include "island/island.h"

namespace hetcomm {

// What an engine needs to know to serve the island of one rank of a communicator.
struct IslandSetup {
  const Topology& topology;
  int rank;
  const std::vector<Member>& members;  // by rank
  std::shared_ptr<Executor> executor;
  std::shared_ptr<Device> device;  // of this rank; null for host memory
  // The failure of a rank that cannot take part, if that is known before the deadline.
  std::function<Status(const Deadline&)> failure;

  const std::vector<int>& ranks() const { return topology.island(topology.island_of(rank)); }
};

// A kind of engine inside islands. A new one is a folder in island/ and a row in engines().
struct Engine {
  const char* name;
  bool (*serves)(const RankInfo& info);
  // Throws Error, on all ranks alike, if the facts say that these cannot be served together.
  void (*check)(const Topology& topology, const std::vector<int>& ranks);
  // On the island's first member: makes what all members need in order to open it.
  std::string (*prepare)(const IslandSetup& setup);
  // Takes back what prepare() made; nothing where all members have it.
  void (*discard)(const std::string& prepared);
  // On every member, at the same time. Throws Error on all of them if one cannot.
  std::unique_ptr<Island> (*open)(const IslandSetup& setup, const std::string& prepared,
                                  Deadline deadline);
};

const std::vector<Engine>& engines();

// What the first member of an island makes for the other members. Taken back with this object: by
// then they have it, or the set-up has failed.
class Offer {
 public:
  Offer() = default;
  Offer(const Offer&) = delete;
  ~Offer() {
    if (engine_ != nullptr) engine_->discard(made_);
  }

  // Once. Throws Error.
  const std::string& make(const Engine& engine, const IslandSetup& setup) {
    made_ = engine.prepare(setup);
    engine_ = &engine;
    return made_;
  }

 private:
  const Engine* engine_ = nullptr;
  std::string made_;
};

// The first engine that serves such a rank.
const Engine& engine_for(const RankInfo& info);

}  // namespace hetcomm
