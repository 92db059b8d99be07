#include "island/ccl/library.h"

#include <map>
#include <mutex>

#include "base/library.h"
#include "base/log.h"

namespace hetcomm {
namespace {

constexpr int kOldestVersion = 21800;  // the first with all of HETCOMM_CCL_SYMBOLS and nccl::Config

// The vendor of this library by its file's name, since all libraries have the same functions.
std::string maker(const Library& library) {
  if (library.has("hetcomm_emulated_vendor")) {
    return library.symbol<const char* (*)()>("hetcomm_emulated_vendor")();
  }
  const std::string file = library.path().substr(library.path().rfind('/') + 1);
  for (const Vendor& vendor : vendors()) {
    for (const std::string& name : vendor.ccl.libraries) {
      if (file.starts_with(name.substr(0, name.find(".so") + 3))) return vendor.name;
    }
  }
  return "";
}

CclLibrary load(const Vendor& vendor) {
  std::vector<std::string> required;
#define X(name, result, parameters) required.push_back("nccl" #name);
  HETCOMM_CCL_SYMBOLS(X)
#undef X
  const LibrarySearch search = vendor.ccl_search();
  Library found = Library::find(search, required);
  if (const std::string other = maker(found); !other.empty() && other != vendor.name) {
    throw Error(Code::vendor, std::string("expected ") + vendor.ccl.name +
                                  ", since this rank's vendor is " + vendor.name +
                                  "; got the library of vendor " + other + ", " + found.path() +
                                  "; correct HETCOMM_VENDOR, or " + search.remedy);
  }
  CclLibrary library;
  library.vendor = &vendor;
  library.path = found.path();
#define X(name, result, parameters) library.name = found.symbol<result(*) parameters>("nccl" #name);
  HETCOMM_CCL_SYMBOLS(X)
#undef X
#define X(name, result, parameters) \
  if (found.has("nccl" #name)) library.name = found.symbol<result(*) parameters>("nccl" #name);
  HETCOMM_CCL_OPTIONAL_SYMBOLS(X)
#undef X
  int version = 0;
  if (nccl::Result result = library.GetVersion(&version)) {
    throw Error(Code::vendor, library.path + ": " + library.failure("ncclGetVersion", result));
  }
  library.version_number = version;
  library.version = vendor.ccl_version_text(version);
  if (version < kOldestVersion) {
    throw Error(Code::vendor, "expected " + vendor.ccl_version_text(kOldestVersion) +
                                  " or newer; got " + library.version + " from " + library.path +
                                  "; " + search.remedy);
  }
  log(LogLevel::info, library.version + " from " + library.path);
  return library;
}

}  // namespace

std::string CclLibrary::failure(const std::string& function, nccl::Result result) const {
  const char* meaning = GetErrorString(result);
  std::string text = (version.empty() ? vendor->ccl.name : version) + ": " + function + ": " +
                     (meaning ? meaning : "error " + std::to_string(result));
  const char* words = GetLastError(nullptr);
  if (words != nullptr && *words != '\0') text += std::string(": ") + words;
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

const CclLibrary& ccl_library(const Vendor& vendor) {
  static std::mutex mutex;
  static auto* all = new std::map<const Vendor*, CclLibrary>;  // used until the process ends
  std::lock_guard lock(mutex);
  auto found = all->find(&vendor);
  if (found == all->end()) found = all->emplace(&vendor, load(vendor)).first;
  return found->second;
}

}  // namespace hetcomm
