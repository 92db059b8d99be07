#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/library.h"
#include "base/memory_kind.h"

namespace hetcomm {

// A maker of accelerators whose runtime is CUDA's or spelled like it, and whose collective library
// has NCCL's ABI. The rows are hetcomm/vendors.toml: to add a vendor is to add a row. Immutable.
//
// In every part `name` is for people ("CUDA"), `prefix` begins the symbols ("cuda"), `libraries`
// are file names, newest first, `variable` is the variable with the file's path, and `remedy` says
// how to get the library.
struct Vendor {
  struct Runtime {
    const char* name = nullptr;
    const char* prefix = nullptr;
    std::vector<std::string> libraries;
    const char* variable = nullptr;
    const char* remedy = nullptr;
    // A version number is major * version_major + minor * version_minor + ...
    int version_major = 0, version_minor = 0;
    int oldest_version = 0;
    // Functions with other names after the prefix: the names, best first.
    std::map<std::string, std::vector<std::string>> spellings;
  };
  // The driver beneath the runtime, or the runtime's own part that loads kernels.
  struct Driver {
    const char* library = nullptr;  // null: the runtime
    // The device attribute that tells which devices see a network card's writes in order. 0: all.
    int remote_writes = 0;
    std::map<std::string, std::string> functions;  // [name in device_kernels.cc] -> symbol
  };
  // Compiles kernels at run time. Its functions are NVRTC's, except for those that return the code.
  struct Compiler {
    const char* name = nullptr;
    const char* prefix = nullptr;
    std::vector<std::string> libraries;
    const char* variable = nullptr;
    const char* remedy = nullptr;
    const char* code = nullptr;  // the word for the code in its functions' names
    const char* architecture_option = nullptr;
    std::vector<std::string> options;  // C++17, and a * b + c not contracted
  };
  // The collective library. Every version reduces all that ccl_reduces() accepts but 8-bit floats.
  struct Ccl {
    const char* name = nullptr;
    std::vector<std::string> libraries;
    const char* variable = nullptr;
    // It reduces 8-bit floats from this version, 22400 for 2.24, and this architecture on.
    int float8_version = 0;
    const char* float8_architecture = nullptr;  // "sm_90"; null: on no real device
  };
  struct Torch {
    const char* device = nullptr;   // torch's name for the vendor's devices
    const char* library = nullptr;  // torch's part for this vendor
    // For a torch without native_handle(): the function that returns a stream's, and its library.
    const char* stream_library = nullptr;
    const char* stream_function = nullptr;
  };

  const char* name = nullptr;              // for HETCOMM_VENDOR: "nvidia", "amd"
  MemoryKind memory = MemoryKind::host;    // the kind of its devices' memory, for transports
  const char* visible_variable = nullptr;  // the variable that lists a process's devices
  int dlpack_host = 0;                     // DLPack's number for its pinned host memory
  Runtime runtime;
  Driver driver;
  Compiler compiler;
  Ccl ccl;
  Torch torch;

  LibrarySearch runtime_search() const;
  LibrarySearch compiler_search() const;
  LibrarySearch ccl_search() const;
  // The runtime's symbols for a function, best first.
  std::vector<std::string> symbols(const std::string& function) const;
  std::string version_text(int version) const;      // "CUDA 13.0"
  std::string ccl_version_text(int version) const;  // "NCCL 2.28.3"
  // Why the collective library ("NCCL 2.22.3 (path)") reduces no 8-bit floats on a device of this
  // architecture ("sm_90"; "emulated" has no limits). Empty if it does.
  std::string why_no_float8(const std::string& library, const std::string& architecture) const;
};

const std::vector<Vendor>& vendors();
std::string vendor_names(const char* between);  // "nvidia, amd"
// Null if no native library serves this label ("cpu" and the user's own).
const Vendor* find_vendor(const std::string& name);

}  // namespace hetcomm
