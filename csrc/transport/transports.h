#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/striped/striped.h"
#include "transport/transport.h"

namespace hetcomm {

// How a process makes the transports that only some peers need; each may be missing.
struct MakeTransports {
  // Over IP alone: to peers that no RDMA network leads to.
  std::function<std::unique_ptr<Transport>()> over_ip;
  // Over this interface alone, and over IP: for NICs that are used together.
  std::function<std::unique_ptr<Transport>(const std::string& interface)> over;
};

// The transports of one process. Owned by the executor and used under its lock; what makes a
// transport throws Error.
class Transports {
 public:
  // `main` may be null; then there are no others either. `watch` is told the event descriptor of
  // each, once it is there.
  Transports(std::unique_ptr<Transport> main, MakeTransports make, std::function<void(int)> watch);
  ~Transports();

  Transport* main() const { return main_.get(); }
  // Made at the first call; without a way to make it, the main one.
  Transport* over_ip();
  bool knows_rails() const { return main_ && make_.over; }
  // Over one NIC, by its interface; and over several together, see make_rails(). Made at the first
  // call for each.
  Transport* over(const std::string& interface);
  using Nics = std::vector<std::pair<std::string, int64_t>>;  // interfaces and their bandwidths
  Transport* rails(const Nics& nics, uint64_t mark);

  bool progress();
  bool prepare_to_sleep();  // see Transport

 private:
  std::unique_ptr<Transport> main_;
  MakeTransports make_;
  std::function<void(int)> watch_;
  std::unique_ptr<Transport> over_ip_;                      // null unless some peer needs it
  std::map<std::string, std::unique_ptr<Transport>> over_;  // moved forward by rails_
  std::map<Nics, std::unique_ptr<Transport>> rails_;
};

}  // namespace hetcomm
