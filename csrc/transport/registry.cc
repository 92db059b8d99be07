#include "transport/registry.h"

#include "base/packing.h"
#include "transport/loopback/loopback.h"
#include "transport/striped/striped.h"
#include "transport/ucx/ucx.h"

namespace hetcomm {

const std::vector<const TransportKind*>& transport_kinds() {
  static const std::vector<const TransportKind*> all = {
      &loopback_transport(),
      &striped_transport(),
      &ucx_transport(),
  };
  return all;
}

std::string TransportId::text() const {
  std::string text = kind;
  if (!rdma) text += " without rdma";
  if (!shared_memory) text += " without shared memory";
  for (size_t i = 0; i < interfaces.size(); ++i) text += (i == 0 ? " over " : ",") + interfaces[i];
  for (const Stripe& stripe : stripes) {
    text += " " + stripe.interface + "=" + std::to_string(stripe.bandwidth);
  }
  if (number != 0) text += " number " + std::to_string(number);
  return text;
}

void LinkEnd::add_addresses(const std::string& packed) {
  for (Unpacker from(packed); !from.ended();) {
    std::string name = from.text();
    addresses[std::move(name)] = from.text();
  }
}

std::string pack_addresses(const std::vector<std::string>& addresses) {
  Packer packer;
  for (const std::string& address : addresses) packer.put(address);
  return packer.take();
}

const TransportKind& transport_kind(const std::string& name) {
  std::string known;
  for (const TransportKind* kind : transport_kinds()) {
    if (kind->name == name) return *kind;
    known += (known.empty() ? "" : ", ") + std::string(kind->name);
  }
  throw Error(Code::invalid_argument,
              "transport: expected one of " + known + "; got \"" + name + "\"; correct the name");
}

std::vector<std::string> default_transports() {
  std::vector<std::string> names;
  for (const TransportKind* kind : transport_kinds()) {
    if (kind->by_default()) names.emplace_back(kind->name);
  }
  return names;
}

}  // namespace hetcomm
