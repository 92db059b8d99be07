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

// The facts from which an engine serves the island of one rank.
struct IslandSetup {
  const Topology& topology;
  int rank;
  const std::vector<Member>& members;  // by rank
  std::shared_ptr<Executor> executor;
  std::shared_ptr<Device> device;  // of this rank; null for host memory
  // The failure of a rank that cannot take part; ok if none is known by the deadline.
  std::function<Status(const Deadline&)> failure;

  const std::vector<int>& ranks() const { return topology.island(topology.island_of(rank)); }
};

// A kind of engine inside islands. A new engine is a folder in island/ and a row in engines.cc.
struct Engine {
  bool (*serves)(const RankInfo& info);
  // Throws Error, alike on all ranks, if the engine cannot serve these ranks by the facts.
  void (*check)(const Topology& topology, const std::vector<int>& ranks);
  // On the island's first member: makes the key with which all members open the engine.
  std::string (*make_key)(const IslandSetup& setup);
  // Removes the object that the key names. Does nothing once all members have opened the engine.
  void (*discard_key)(const std::string& key);
  // On every member, at the same time. Throws Error on all members if one cannot.
  std::unique_ptr<Island> (*open)(const IslandSetup& setup, const std::string& key,
                                  Deadline deadline);
};

// The first member of an island makes the key for the other members. The destructor discards the
// key; by then all members have opened the engine, or set-up has failed.
class IslandKey {
 public:
  IslandKey() = default;
  IslandKey(const IslandKey&) = delete;
  ~IslandKey() {
    if (engine_ != nullptr) engine_->discard_key(key_);
  }

  // Later calls return the same key. Throws Error.
  const std::string& make(const Engine& engine, const IslandSetup& setup) {
    if (engine_ == nullptr) key_ = engine.make_key(setup);
    engine_ = &engine;
    return key_;
  }

 private:
  const Engine* engine_ = nullptr;
  std::string key_;
};

// The first engine that serves such a rank.
const Engine& engine_for(const RankInfo& info);

}  // namespace hetcomm
