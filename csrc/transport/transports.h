#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/registry.h"

namespace hetcomm {

// The way to a peer.
struct Route {
  Transport* transport = nullptr;  // null if this rank has no transport
  std::string address;             // of the peer, for connect(); empty if no transport leads there
  std::string why_none;            // the reason for an empty address
};

// The transports of one executor, each made at first use. Owned by the executor and used under its
// lock.
class Transports {
 public:
  explicit Transports(Status why_none) : why_none_(std::move(why_none)) {}
  // Offers transports of these kinds, and makes the transports of most links. A kind whose
  // transport cannot be made is left out with a log entry. Throws Error if all kinds are left out.
  explicit Transports(const std::vector<std::string>& kinds,
                      std::vector<NetworkDevice> devices = {});
  ~Transports();
  Transports(const Transports&) = delete;

  // Reports the event descriptor of each polled transport, now and later.
  void watch_by(std::function<void(int)> watch);

  // The next four need no lock. The first transport, or null and the reason.
  Transport* main() const { return main_; }
  const Status& why_none() const { return why_none_; }
  const std::vector<NetworkDevice>& devices() const { return devices_; }
  bool stripes() const;  // links can use several NICs together

  // The transport of this id, made at the first call. Throws Error.
  Transport& get(const TransportId& id);
  // The same for a part of a striped transport, which polls the part.
  Transport& part(const TransportId& id);

  // Packed addresses of the transports of most links, for LinkEnd::add_addresses() at the peers.
  std::string addresses(bool same_host) const;
  // Packed addresses of further transports, which links with these ends need.
  std::string addresses(const std::vector<LinkEnd>& ends);
  // The cheapest transport that both ends offer. Throws Error if it cannot be made.
  Route route(const LinkEnd& here, const LinkEnd& there);

  bool progress();
  bool prepare_to_sleep();  // see Transport

 private:
  struct Made {
    TransportId id;
    std::unique_ptr<Transport> transport;
  };

  Transport* main_ = nullptr;
  Status why_none_;
  std::vector<const TransportKind*> kinds_;
  std::vector<NetworkDevice> devices_;
  std::function<void(int)> watch_;
  std::list<Made> made_;            // parts before the transports that combine them
  std::vector<Transport*> polled_;  // of made_
};

}  // namespace hetcomm
