#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/library.h"
#include "base/memory_kind.h"

namespace hetcomm {

// A maker of accelerators whose runtime is CUDA's or spelled like it, and whose collective library
// has NCCL's ABI. To add one is to add a row to the table in vendor.cc. Immutable.
struct Vendor {
  const char* name;                            // what HETCOMM_VENDOR says: "nvidia", "amd"
  const char* runtime;                         // for people: "CUDA", "HIP"
  const char* prefix;                          // of the runtime's symbols: "cuda", "hip"
  MemoryKind memory;                           // what its devices' memory is to a transport
  std::vector<std::string> runtime_libraries;  // file names, newest first
  const char* runtime_variable;                // names the runtime to take
  const char* ccl;                             // for people: "NCCL", "RCCL"
  std::vector<std::string> ccl_libraries;
  const char* ccl_variable;
  const char* visible_variable;  // which devices the runtime shows to a process
  const char* torch_library;     // torch's part for this vendor
  const char* driver_library;    // has stream memory operations; null: in the runtime, if anywhere
  // Where the runtime spells a function otherwise than prefix + name, best first.
  std::vector<std::pair<std::string, std::vector<std::string>>> spellings;
  // Waits until a word of pinned host memory is at least a value; null: the vendor has no such
  // operation on ordinary pinned memory, so a host function waits instead.
  const char* stream_wait_value;
  unsigned wait_flush;  // flag of that: what other devices wrote before is visible behind; 0: none
  // A runtime's version number is major * version_major + minor * version_minor + ...
  int version_major, version_minor;
  int oldest_version;
  const char* remedy;  // how to get the runtime

  LibrarySearch runtime_search() const;
  LibrarySearch ccl_search() const;  // for NCCL and its likes
  std::vector<std::string> symbols(
      const std::string& function) const;       // of the runtime, best first
  std::string version_text(int version) const;  // "CUDA 13.0"
};

const std::vector<Vendor>& vendors();
// Null if no native library serves this label ("cpu" and the user's own).
const Vendor* find_vendor(const std::string& name);

}  // namespace hetcomm
