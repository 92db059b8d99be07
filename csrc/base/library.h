#pragma once

#include <string>
#include <vector>

namespace hetcomm {

// What to look for. The order: the file that `variable` names, and no other; a copy this process
// has loaded already (of several the one that `user` is linked with, and a warning; an error if
// that is not loaded); the folders of pip wheels; the system's search path.
struct LibrarySearch {
  std::string what;                // for people: "CUDA runtime"
  std::vector<std::string> names;  // file names, best first: "libcudart.so.13", "libcudart.so.12"
  std::string variable;            // "HETCOMM_CUDA_LIBRARY"
  std::string remedy;              // what to do if there is none
  std::string user;                // the library whose copy counts: "libtorch_cuda.so"; if empty,
                                   // the copy that came first does
  std::string symbol;              // a function of the library, by which to find the user's copy
};

// A shared library found at run time and kept loaded for the life of the process. Symbols are
// looked up in this library only. Thread-safe after construction.
class Library {
 public:
  // Loads the first candidate that dlopen accepts and that has all the required symbols. Throws
  // Error(vendor) that lists every attempt, followed by the remedy.
  static Library open(const std::string& what, const std::vector<std::string>& candidates,
                      const std::vector<std::string>& required_symbols, const std::string& remedy);
  static Library find(const LibrarySearch& search,
                      const std::vector<std::string>& required_symbols);

  template <typename Function>
  Function symbol(const char* name) const {
    return reinterpret_cast<Function>(address(name));
  }
  bool has(const char* name) const;
  const std::string& path() const { return path_; }  // of the file that was loaded

 private:
  void* address(const char* name) const;  // throws Error(vendor) if absent

  void* handle_ = nullptr;
  std::string path_;
};

// Where to look, in order; warns if what is taken lies beside another copy that is in use. Throws
// Error(vendor) if nothing tells which of several copies that is.
std::vector<std::string> library_candidates(const LibrarySearch& search);

// Paths of the loaded copies of a library: equal file name up to ".so", whatever the version.
std::vector<std::string> loaded_libraries(const std::string& name);

// The folders in which installed pip wheels keep their libraries, which C++ cannot find by itself.
// Has no effect on libraries that were found already. Thread-safe.
void set_wheel_folders(const std::vector<std::string>& folders);

}  // namespace hetcomm
