#pragma once

#include <cstdint>

namespace hetcomm::emulated {

// Where other processes of this machine read the launches of a device, see launch_order.cc.
struct Place {
  int32_t process = 0;
  int32_t file = -1;
  int32_t device = -1;
};
Place place_of(int device);  // of this process; nowhere without `order`

}  // namespace hetcomm::emulated
