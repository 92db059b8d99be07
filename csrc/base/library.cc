#include "base/library.h"

#include <dlfcn.h>

#include "base/status.h"

namespace hetcomm {

Library Library::open(const std::string& what, const std::vector<std::string>& candidates,
                      const std::vector<std::string>& required_symbols, const std::string& remedy) {
  Library library;
  for (const std::string& candidate : candidates) {
    void* handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* why = dlerror();
      library.attempts_.push_back({candidate, why ? why : "cannot be loaded"});
      continue;
    }
    std::string missing;
    for (const std::string& symbol : required_symbols) {
      if (dlsym(handle, symbol.c_str()) == nullptr) missing += " " + symbol;
    }
    if (!missing.empty()) {
      library.attempts_.push_back({candidate, "lacks the symbols" + missing});
      continue;  // kept loaded: some libraries do not survive dlclose
    }
    library.handle_ = handle;
    library.path_ = candidate;
    library.attempts_.push_back({candidate, "taken"});
    return library;
  }
  std::string text = what + " not found; tried:";
  for (const Attempt& attempt : library.attempts_) {
    text += "\n  " + attempt.path + ": " + attempt.outcome;
  }
  throw Error(Code::vendor, text + "\n" + remedy);
}

bool Library::has(const char* name) const { return dlsym(handle_, name) != nullptr; }

void* Library::address(const char* name) const {
  if (void* found = dlsym(handle_, name)) return found;
  throw Error(Code::vendor, path_ + " has no symbol " + name);
}

}  // namespace hetcomm
