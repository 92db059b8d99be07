#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace hetcomm::emulated {

// What HETCOMM_EMULATED_HOSTILE switches on, see settings.h. Nothing by default.
struct Hostile {
  int queues = 0;  // hardware queues of a device, 0: one for each stream
  bool sync = false;
  bool gates = false;
  bool poison = false;
  bool order = false;
  bool lazy = false;
  bool late = false;
  bool handles = false;
  bool ends = false;
  bool delays = false;
  uint64_t seed = 0;  // of delays
  std::chrono::seconds bound{10};

  bool any() const { return queues > 0 || sync || poison || order || delays; }
};

// Throws Error(invalid_argument).
Hostile parse_hostile(const std::string& text);

// Sleeps for up to 1.5 ms before one of eight operations, as the seed says. The two numbers name
// the operation.
void delay(uint64_t place, uint64_t number);

// With poison: fills memory whose contents are undefined.
void poison(void* memory, size_t bytes);
// Fills the target of an operation that begins, unless the source overlaps it.
void poison_target(void* target, size_t bytes, const void* source, size_t source_bytes);

}  // namespace hetcomm::emulated
