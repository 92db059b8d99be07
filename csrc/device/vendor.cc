#include "device/vendor.h"

#include <cstdio>

namespace hetcomm {
namespace {

std::string remedy(const char* how, const char* variable, const std::string& file) {
  return std::string(how) + ", or set " + variable + " to the path of a " + file;
}

std::string without_version(const std::string& file) {
  return file.substr(0, file.find(".so") + 3);
}

// The digits at the end of "sm_90".
int number_of(const std::string& architecture) {
  const size_t digits = architecture.find_last_not_of("0123456789") + 1;
  return digits < architecture.size() ? std::stoi(architecture.substr(digits)) : 0;
}

}  // namespace

std::string vendor_names(const char* between) {
  std::string names;
  for (const Vendor& vendor : vendors())
    names += (names.empty() ? "" : between) + std::string(vendor.name);
  return names;
}

const Vendor* find_vendor(const std::string& name) {
  for (const Vendor& vendor : vendors()) {
    if (name == vendor.name) return &vendor;
  }
  return nullptr;
}

LibrarySearch Vendor::runtime_search() const {
  return {.what = std::string(runtime.name) + " runtime",
          .names = runtime.libraries,
          .variable = runtime.variable,
          .remedy =
              remedy(runtime.remedy, runtime.variable, without_version(runtime.libraries.front())) +
              "; or, if this rank has no such device, correct HETCOMM_VENDOR, which is " + name +
              " here (cpu is always possible)",
          .user = torch.library,
          .symbol = symbols("GetDeviceCount").front()};
}

LibrarySearch Vendor::compiler_search() const {
  return {.what = compiler.name,
          .names = compiler.libraries,
          .variable = compiler.variable,
          .remedy = remedy(compiler.remedy, compiler.variable,
                           without_version(compiler.libraries.front())),
          .user = "",
          .symbol = std::string(compiler.prefix) + "Version"};
}

LibrarySearch Vendor::ccl_search() const {
  const std::string how =
      std::string("install ") + ccl.name + " (torch for " + runtime.name + " brings it)";
  return {.what = ccl.name,
          .names = ccl.libraries,
          .variable = ccl.variable,
          .remedy = remedy(how.c_str(), ccl.variable, ccl.libraries.front()),
          .user = torch.library,
          .symbol = "ncclGetUniqueId"};
}

std::vector<std::string> Vendor::symbols(const std::string& function) const {
  const auto spelled = runtime.spellings.find(function);
  if (spelled == runtime.spellings.end()) return {runtime.prefix + function};
  std::vector<std::string> all;
  for (const std::string& spelling : spelled->second) all.push_back(runtime.prefix + spelling);
  return all;
}

std::string Vendor::version_text(int version) const {
  return std::string(runtime.name) + " " + std::to_string(version / runtime.version_major) + "." +
         std::to_string(version % runtime.version_major / runtime.version_minor);
}

std::string Vendor::ccl_version_text(int version) const {
  return std::string(ccl.name) + " " + std::to_string(version / 10000) + "." +
         std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
}

std::string Vendor::why_no_float8(const std::string& library,
                                  const std::string& architecture) const {
  int major = 0, minor = 0;
  std::sscanf(library.c_str(), "%*s %d.%d", &major, &minor);
  const bool emulated = architecture == "emulated";
  if (ccl.float8_architecture == nullptr && !emulated) {
    return std::string(ccl.name) + "'s 8-bit floats differ between devices";
  }
  if (major * 10000 + minor * 100 < ccl.float8_version) {
    return "expected " + ccl_version_text(ccl.float8_version) + " or newer; update the library";
  }
  if (emulated || number_of(architecture) >= number_of(ccl.float8_architecture)) return "";
  return std::string("expected a device of architecture ") + ccl.float8_architecture + " or newer";
}

}  // namespace hetcomm
