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
  std::string interface;       // with the NIC's address; may be empty
  std::string address;         // IP; may be empty
  bool plain_ethernet = true;  // neither InfiniBand nor RoCE
};

// One of several NICs that carry a message together.
struct Stripe {
  std::string interface;
  int64_t bandwidth = 0;  // bytes per second, the same at both ends

  auto operator<=>(const Stripe&) const = default;
};

// Identifies one transport of a process.
struct TransportId {
  std::string kind;  // a row of transport_kinds()
  // Network interfaces or RDMA devices, best first; empty: all.
  std::vector<std::string> interfaces;
  bool rdma = true;             // may use RDMA
  bool shared_memory = true;    // may use shared memory
  std::vector<Stripe> stripes;  // of a striped transport, the fastest first
  // Tells transports apart that are otherwise equal. -1: no part of a striped transport.
  int64_t number = 0;

  auto operator<=>(const TransportId&) const = default;
  std::string text() const;  // "ucx", "ucx without rdma over eth0"
};

// The facts of one end of a future link. Both ends derive both LinkEnds from exchanged facts.
struct LinkEnd {
  bool same_host = false;       // as the other end
  bool avoids_rdma = false;     // the rank has RDMA ports, but no RDMA network joins the two ends
  bool over_ip = false;         // neither RDMA nor shared memory joins the two ends
  std::vector<Stripe> stripes;  // the rank's NICs for this link
  std::string interface;        // the rank's only one that reaches the other end; empty: any does
  std::vector<MemoryKind> memory = {MemoryKind::host};  // of messages on this link
  std::map<std::string, std::string> addresses;  // of the rank's transports, by TransportId::text()

  void add_addresses(const std::string& packed);  // throws Error(invalid_argument)
};

// The address of a transport that combines others.
std::string pack_addresses(const std::vector<std::string>& addresses);

// A hint for the choice among viable transports.
struct LinkCost {
  int64_t latency = 0;    // ns of a message
  int64_t bandwidth = 0;  // bytes per second
};

// A row of the registry. A new transport is a folder in transport/ and a line in registry.cc.
struct TransportKind {
  const char* name;
  // Transports of this kind can send these kinds of memory. Transport::why_not_direct() answers for
  // a certain device.
  std::vector<MemoryKind> memory;
  // Whether a process offers the kind by default. The other kinds are for tests.
  bool (*by_default)();
  // Whether links between such ends can use the kind. The same answer at both ends.
  bool (*viable)(const LinkEnd& here, const LinkEnd& there);
  LinkCost (*cost)(const LinkEnd& here);
  // The transport at this end. An end without facts stands for most links.
  TransportId (*id)(const LinkEnd& end);
  // Null, or the transports that a striped transport combines. Their addresses in this order are
  // its address, see pack_addresses(). An end without facts has none, so set-up makes the transport
  // for certain links only.
  std::vector<TransportId> (*parts)(const LinkEnd& end);
  // Throws Error. `transports` makes the parts.
  std::unique_ptr<Transport> (*make)(const TransportId& id, Transports& transports);
  const char* remedy;  // for a rank without the kind: "install libucx-cu13 ..."
};

// In the order of preference among equal costs.
const std::vector<const TransportKind*>& transport_kinds();
// Throws Error(invalid_argument) on an unknown name.
const TransportKind& transport_kind(const std::string& name);
// The names of the kinds that a process offers.
std::vector<std::string> default_transports();

}  // namespace hetcomm
