#include "bootstrap/member.h"

#include "base/packing.h"

namespace hetcomm {
namespace {

// Raise it when ranks of different builds can no longer work together.
constexpr uint64_t kProtocol = 20;

}  // namespace

std::string Member::pack() const {
  Packer packer;
  packer.put(kProtocol)
      .put(serialize(info))
      .put(table)
      .put(uint64_t{deterministic})
      .put(codec)
      .put(profile)
      .put(uint64_t{first_sender})
      .put(local_address)
      .put(network_address)
      .put(wake_address)
      .put(contact)
      .put(word)
      .put(uint64_t{rail_ports.size()});
  for (const auto& [nic, port] : rail_ports) packer.put(static_cast<uint64_t>(nic)).put(port);
  packer.put(uint64_t{shared_memory.size()});
  for (const std::string& kind : shared_memory) packer.put(kind);
  return packer.take();
}

Member Member::unpack(const std::string& bytes) {
  Unpacker from(bytes);
  const uint64_t protocol = from.number();
  if (protocol != kProtocol) {
    throw Error(Code::invalid_argument, "expected protocol " + std::to_string(kProtocol) +
                                            ", got " + std::to_string(protocol) +
                                            "; install the same hetcomm version on every rank");
  }
  Member member;
  member.info = parse_rank_info(from.text());
  member.table = from.text();
  member.deterministic = from.number() != 0;
  member.codec = from.text();
  member.profile = from.text();
  member.first_sender = static_cast<uint32_t>(from.number());
  member.local_address = from.text();
  member.network_address = from.text();
  member.wake_address = from.text();
  member.contact = from.text();
  member.word = from.text();
  for (uint64_t left = from.number(); left > 0; --left) {
    const int nic = static_cast<int>(from.number());
    member.rail_ports[nic] = from.number();
  }
  for (uint64_t left = from.number(); left > 0; --left) member.shared_memory.push_back(from.text());
  return member;
}

}  // namespace hetcomm
