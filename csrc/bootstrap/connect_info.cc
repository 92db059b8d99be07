#include "bootstrap/connect_info.h"

#include "base/packing.h"

namespace hetcomm {

std::string ConnectInfo::pack() const {
  Packer packer;
  packer.put(island_key).put(addresses).put(uint64_t{failed_rails.size()});
  for (const FailedRail& failed : failed_rails) failed.pack(packer);
  return packer.take();
}

ConnectInfo ConnectInfo::unpack(const std::string& bytes) {
  Unpacker from(bytes);
  ConnectInfo info{from.text(), from.text(), {}};
  for (uint64_t left = from.number(); left > 0; --left) {
    info.failed_rails.push_back(FailedRail::unpack(from));
  }
  return info;
}

}  // namespace hetcomm
