#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/memory_kind.h"
#include "transport/transport.h"

namespace hetcomm {

class Transports;

// A NIC of this host.
struct NetworkDevice {
  std::string name;            // RDMA port "mlx5_0" or "mlx5_0:2", else the interface "eth0"
  std::string interface;       // that carries its address; may be empty
  std::string address;         // IP, may be empty
  bool plain_ethernet = true;  // neither InfiniBand nor RoCE
};

// One of several NICs that carry a message together, the fastest first.
struct Stripe {
  std::string interface;
  int64_t bandwidth = 0;  // bytes per second, the same at both ends

  auto operator<=>(const Stripe&) const = default;
};

// Names one transport of a process.
struct TransportId {
  std::string kind;  // a row of transport_kinds()
  // Network interfaces or RDMA devices, best first; empty: all.
  std::vector<std::string> interfaces;
  bool rdma = true;             // may use RDMA
  std::vector<Stripe> stripes;  // of a striped transport
  int64_t number = 0;           // of several that are otherwise alike

  auto operator<=>(const TransportId&) const = default;
  std::string text() const;  // "ucx", "ucx without rdma over eth0"
};

// The facts of one end of a future link. Both ends know both, from exchanged facts alone.
struct LinkEnd {
  bool same_host = false;       // as the other end
  bool avoids_rdma = false;     // has RDMA ports, but no RDMA network joins the two ends
  std::vector<Stripe> stripes;  // its NICs for this link
  std::vector<MemoryKind> memory = {MemoryKind::host};  // of messages on this link
  std::map<std::string, std::string> addresses;         // of its transports, by TransportId::text()

  void add_addresses(const std::string& packed);  // throws Error(invalid_argument)
};

// The address of a transport that combines others.
std::string pack_addresses(const std::vector<std::string>& addresses);

// A hint, to choose among viable transports.
struct LinkCost {
  int64_t latency = 0;    // ns of a message
  int64_t bandwidth = 0;  // bytes per second
};

// A row of the registry. A new transport is a folder in transport/ and a line in registry.cc.
struct TransportKind {
  const char* name;
  // Kinds of memory that its transports can send. Transport::why_not_direct() answers for a device.
  std::vector<MemoryKind> memory;
  // Whether a process offers it unless told otherwise. Others are for tests.
  bool (*by_default)();
  // Whether links between such ends can use it. The same answer at both ends.
  bool (*viable)(const LinkEnd& here, const LinkEnd& there);
  LinkCost (*cost)(const LinkEnd& here);
  // The transport at this end. An end without facts stands for most links.
  TransportId (*id)(const LinkEnd& end);
  // Null, or the transports that it stripes over, whose addresses in this order are its own (see
  // pack_addresses()). None for an end without facts: it is made for certain links only.
  std::vector<TransportId> (*parts)(const LinkEnd& end);
  // Throws Error. `transports` makes the parts.
  std::unique_ptr<Transport> (*make)(const TransportId& id, Transports& transports);
  const char* remedy;  // for a rank that has none: "install libucx-cu13 ..."
};

// In the order of preference among equal costs.
const std::vector<const TransportKind*>& transport_kinds();
// Throws Error(invalid_argument) on an unknown name.
const TransportKind& transport_kind(const std::string& name);
// The names of those that a process offers.
std::vector<std::string> default_transports();

}  // namespace hetcomm
