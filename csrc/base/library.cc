#include "base/library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "base/config.h"
#include "base/joined.h"
#include "base/log.h"
#include "base/status.h"

namespace hetcomm {
namespace {

namespace fs = std::filesystem;

std::mutex mutex;
std::vector<std::string>& wheel_folders() {
  static auto* folders = new std::vector<std::string>;
  return *folders;
}

// "libcudart.so" of "/usr/lib/libcudart.so.13".
std::string without_version(const std::string& path) {
  std::string file = fs::path(path).filename();
  size_t end = file.find(".so");
  return end == std::string::npos ? file : file.substr(0, end + 3);
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return fs::equivalent(a, b, ignored);
}

std::string path_of(void* handle, const std::string& otherwise) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || *map->l_name == '\0') return otherwise;
  return map->l_name;
}

// Paths of the loaded copies of a library: equal file names up to ".so", in any version.
std::vector<std::string> loaded_libraries(const std::string& name) {
  struct Search {
    std::string file;
    std::vector<std::string> found;
  } search{without_version(name), {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* argument) {
        auto& search = *static_cast<Search*>(argument);
        const std::string path = info->dlpi_name;
        auto same = [&](const std::string& other) { return same_file(path, other); };
        if (without_version(path) == search.file &&
            std::none_of(search.found.begin(), search.found.end(), same)) {
          search.found.push_back(path);
        }
        return 0;
      },
      &search);
  return search.found;
}

// The copy that the loaded library `user` calls; empty if there is no such user.
std::string copy_of_user(const LibrarySearch& search) {
  if (search.user.empty()) return "";
  void* user = dlopen(search.user.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (user == nullptr) return "";
  Dl_info info{};
  void* function = dlsym(user, search.symbol.c_str());
  bool known = function != nullptr && dladdr(function, &info) != 0 && info.dli_fname != nullptr;
  dlclose(user);
  return known ? info.dli_fname : "";
}

// The loaded copy to use, if the user of hetcomm names none; empty if no copy is loaded.
std::string loaded_copy(const LibrarySearch& search, const std::vector<std::string>& loaded) {
  if (loaded.size() < 2) return loaded.empty() ? "" : loaded.front();
  std::string of_user = copy_of_user(search);
  std::string taken = of_user.empty() ? loaded.front() : of_user;
  const std::string text = joined(loaded, " and ");
  if (of_user.empty() && !search.user.empty()) {
    throw Error(Code::vendor, "expected one " + search.what + " in this process, got " + text +
                                  ", and no " + search.user +
                                  " to tell which of them is in use; load only one, or set " +
                                  search.variable + " to the path of the one that is");
  }
  log(LogLevel::warning,
      "this process has loaded more than one " + search.what + ": " + text + "; taking " + taken +
          (of_user.empty() ? ", which came first" : ", which " + search.user + " uses") +
          "; memory and streams of one may be unknown to the other, so remove all but one");
  return taken;
}

}  // namespace

Library Library::open(const std::string& what, const std::vector<std::string>& candidates,
                      const std::vector<std::string>& required_symbols, const std::string& remedy) {
  std::string attempts;
  for (const std::string& candidate : candidates) {
    void* handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* why = dlerror();
      attempts += "\n  " + candidate + ": " + (why ? why : "cannot be loaded");
      continue;
    }
    Library library;
    library.handle_ = handle;
    library.path_ = path_of(handle, candidate);
    std::string missing;
    for (const std::string& symbol : required_symbols) {
      if (!library.has(symbol.c_str())) missing += " " + symbol;
    }
    if (missing.empty()) return library;
    // It stays loaded: some libraries do not survive dlclose.
    attempts += "\n  " + library.path_ + ": lacks the symbols" + missing;
  }
  throw Error(Code::vendor, what + " not found; tried:" + attempts + "\n" + remedy);
}

Library Library::find(const LibrarySearch& search,
                      const std::vector<std::string>& required_symbols) {
  return open(search.what, library_candidates(search), required_symbols, search.remedy);
}

bool Library::has(const char* name) const { return dlsym(handle_, name) != nullptr; }

void* Library::address(const char* name) const {
  if (void* found = dlsym(handle_, name)) return found;
  throw Error(Code::vendor, path_ + " has no symbol " + name);
}

std::vector<std::string> library_candidates(const LibrarySearch& search) {
  const std::vector<std::string> loaded = loaded_libraries(search.names.front());
  if (auto chosen = setting(search.variable.c_str())) {
    auto is_it = [&](const std::string& path) { return same_file(path, *chosen); };
    if (!loaded.empty() && std::none_of(loaded.begin(), loaded.end(), is_it)) {
      log(LogLevel::warning, search.variable + "=" + *chosen + " is loaded beside " +
                                 loaded.front() +
                                 ", which the process uses already; make them the same");
    }
    return {*chosen};
  }
  if (std::string copy = loaded_copy(search, loaded); !copy.empty()) return {copy};
  std::vector<std::string> paths;
  std::lock_guard lock(mutex);
  for (const std::string& name : search.names) {
    for (const std::string& folder : wheel_folders()) {
      std::error_code ignored;
      fs::path path = fs::path(folder) / name;
      if (fs::exists(path, ignored)) paths.push_back(path);
    }
  }
  paths.insert(paths.end(), search.names.begin(), search.names.end());
  return paths;
}

void set_wheel_folders(const std::vector<std::string>& folders) {
  std::lock_guard lock(mutex);
  wheel_folders() = folders;
}

}  // namespace hetcomm
