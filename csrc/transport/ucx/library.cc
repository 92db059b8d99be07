#include "transport/ucx/library.h"

#include <filesystem>
#include <mutex>
#include <vector>

#include "base/config.h"
#include "base/library.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/ucx/settings.h"

namespace hetcomm {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kOldestVersion = 112;
const LibrarySearch kSearch = {
    .what = "UCX (libucp.so.0)",
    .names = {"libucp.so.0"},
    .variable = "HETCOMM_UCX_LIBRARY",
    .remedy =
        "pip install libucx-cu13, or set HETCOMM_UCX_LIBRARY to the path of a libucp.so.0 of "
        "UCX 1.12 or newer",
};

// UCX looks for its modules in the folder "ucx" beside its libraries.
bool has_rdma_module(const fs::path& libucp) {
  std::error_code ignored;
  return fs::exists(libucp.parent_path() / "ucx" / "libuct_ib.so.0", ignored);
}

// A system libucp that can drive RDMA. Looks at files only, because two UCX in one process would
// share the first one's libucs.
std::string system_libucp_with_rdma() {
  std::vector<fs::path> folders;
  std::string search = setting("LD_LIBRARY_PATH", "");
  for (size_t start = 0; start < search.size();) {
    size_t end = std::min(search.find(':', start), search.size());
    if (end > start) folders.push_back(search.substr(start, end - start));
    start = end + 1;
  }
  for (const char* folder : {"/opt/hpcx/ucx/lib", "/opt/ucx/lib", "/usr/local/lib", "/usr/lib64",
                             "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"})
    folders.push_back(folder);
  for (const fs::path& folder : folders) {
    std::error_code ignored;
    fs::path libucp = folder / "libucp.so.0";
    if (fs::exists(libucp, ignored) && has_rdma_module(libucp)) return libucp;
  }
  return "";
}

std::vector<std::string> candidates() {
  std::vector<std::string> paths = library_candidates(kSearch);
  bool wheel = paths.size() > 1;  // a chosen or loaded library is the only candidate
  if (wheel && !rdma_devices().empty() && !has_rdma_module(paths.front())) {
    std::string system = system_libucp_with_rdma();
    if (!system.empty()) {
      log(LogLevel::info,
          "using " + system + ": it drives the RDMA devices here, unlike the libucx wheel");
      paths.insert(paths.begin(), system);
    }
  }
  return paths;
}

UcxLibrary load() {
  std::vector<std::string> paths = candidates();
  Library library = [&] {
    LoadEnvironment environment;
    return Library::open(kSearch.what, paths, {"ucp_get_version"}, kSearch.remedy);
  }();
  UcxLibrary ucx;
  ucx.ucp_get_version = library.symbol<decltype(&::ucp_get_version)>("ucp_get_version");
  ucx.path = library.path();
  unsigned major = 0, minor = 0, release = 0;
  ucx.ucp_get_version(&major, &minor, &release);
  ucx.version = std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
  ucx.major_minor = major * 100 + minor;
  if (major != 1 || ucx.major_minor < kOldestVersion) {
    throw Error(Code::vendor, "UCX: expected version 1.12 or newer, below 2; got " + ucx.version +
                                  " from " + ucx.path + "; " + kSearch.remedy);
  }
#define X(symbol_name) ucx.symbol_name = library.symbol<decltype(&::symbol_name)>(#symbol_name);
  HETCOMM_UCX_SYMBOLS(X)
#undef X
#define X(symbol_name)           \
  if (library.has(#symbol_name)) \
    ucx.symbol_name = library.symbol<decltype(&::symbol_name)>(#symbol_name);
  HETCOMM_UCT_SYMBOLS(X)
#undef X
  ucx.drives_rdma = has_rdma_module(ucx.path);
  log(LogLevel::info, "UCX " + ucx.version + " from " + ucx.path);
  return ucx;
}

}  // namespace

const UcxLibrary& ucx_library() {
  static std::mutex mutex;
  static const UcxLibrary* library =
      nullptr;  // never destroyed, because used until the process ends
  std::lock_guard lock(mutex);
  if (library == nullptr) library = new UcxLibrary(load());
  return *library;
}

}  // namespace hetcomm
