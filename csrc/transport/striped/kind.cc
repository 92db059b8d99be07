// The registry's row of striped transports.

#include "transport/striped/striped.h"
#include "transport/transports.h"
#include "transport/ucx/ucx.h"

namespace hetcomm {
namespace {

bool viable(const LinkEnd& here, const LinkEnd& there) {
  return !here.stripes.empty() && here.stripes.size() == there.stripes.size();
}

LinkCost cost(const LinkEnd& here) {
  LinkCost cost = ucx_transport().cost(here);
  cost.bandwidth = 0;
  for (const Stripe& stripe : here.stripes) cost.bandwidth += stripe.bandwidth;
  return cost;
}

TransportId id(const LinkEnd& end) { return {.kind = "striped", .stripes = end.stripes}; }

std::vector<TransportId> parts(const std::vector<Stripe>& stripes) {
  std::vector<TransportId> parts;
  std::map<std::string, int64_t> used;  // number of uses, by interface
  for (const auto& [interface, bandwidth] : stripes) {
    parts.push_back(
        {.kind = "ucx", .interfaces = {interface}, .rdma = false, .number = used[interface]++});
  }
  return parts;
}

std::unique_ptr<Transport> make(const TransportId& id, Transports& transports) {
  std::vector<StripeTransport> stripes;
  const std::vector<TransportId> over = parts(id.stripes);
  for (size_t i = 0; i < over.size(); ++i) {
    stripes.push_back({&transports.part(over[i]), id.stripes[i].bandwidth});
  }
  return make_striped_transport(std::move(stripes));
}

}  // namespace

const TransportKind& striped_transport() {
  static const TransportKind kind = {
      .name = "striped",
      .memory = ucx_transport().memory,
      .by_default = [] { return !user_chooses_ucx_devices(); },
      .viable = viable,
      .cost = cost,
      .id = id,
      .parts = [](const LinkEnd& end) { return parts(end.stripes); },
      .make = make,
      .remedy = nullptr,
  };
  return kind;
}

}  // namespace hetcomm
