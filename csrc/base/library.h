#pragma once

#include <string>
#include <vector>

namespace hetcomm {

// The search for a library. If `variable` names a file, only that file counts. Then comes a copy
// that this process has loaded already; of several copies the one that `user` is linked with, with
// a warning, or with an error if `user` is not loaded. Then come the folders of pip wheels, and the
// system's search path.
struct LibrarySearch {
  std::string what;                // for people: "CUDA runtime"
  std::vector<std::string> names;  // file names, best first: "libcudart.so.13", "libcudart.so.12"
  std::string variable;            // "HETCOMM_CUDA_LIBRARY"
  std::string remedy;              // for users without the library
  std::string user;                // "libtorch_cuda.so"; if empty, the first loaded copy counts
  std::string symbol;              // a function of the library, by which to find the user's copy
};

// A shared library found at run time, and loaded until the process ends. Symbols come from this
// library only. Thread-safe after construction.
class Library {
 public:
  // Loads the first candidate that dlopen accepts and that has all required symbols. Throws
  // Error(vendor) with every attempt and the remedy.
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

// The candidates of a search, in order. Warns of a second copy beside a loaded library. Throws
// Error(vendor) if the copy in use is unknown.
std::vector<std::string> library_candidates(const LibrarySearch& search);

// Sets the folders of libraries in installed pip wheels, which C++ cannot find by itself. Has no
// effect on libraries that were found already. Thread-safe.
void set_wheel_folders(const std::vector<std::string>& folders);

}  // namespace hetcomm
