#pragma once

#include <string>
#include <vector>

namespace hetcomm {

// A shared library found at run time and kept loaded for the life of the process. Symbols are
// looked up in this library only. Thread-safe after construction.
class Library {
 public:
  // Where a library was looked for and why it was or was not taken, one line per candidate.
  struct Attempt {
    std::string path;
    std::string outcome;
  };

  // Loads the first candidate that dlopen accepts and that has all the required symbols. Throws
  // Error(vendor) that lists every attempt, followed by the remedy.
  static Library open(const std::string& what, const std::vector<std::string>& candidates,
                      const std::vector<std::string>& required_symbols, const std::string& remedy);

  template <typename Function>
  Function symbol(const char* name) const {
    return reinterpret_cast<Function>(address(name));
  }
  bool has(const char* name) const;
  const std::string& path() const { return path_; }
  const std::vector<Attempt>& attempts() const { return attempts_; }

 private:
  void* address(const char* name) const;  // throws Error(vendor) if absent

  void* handle_ = nullptr;
  std::string path_;
  std::vector<Attempt> attempts_;
};

}  // namespace hetcomm
