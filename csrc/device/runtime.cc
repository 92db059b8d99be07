#include "device/runtime.h"

#include <unistd.h>

#include <map>
#include <mutex>

#include "base/config.h"
#include "base/log.h"
#include "base/status.h"

namespace hetcomm {
namespace {

std::string visible(const Vendor& vendor) {
  const auto value = environment_variable(vendor.visible_variable);
  return std::string(vendor.visible_variable) + (value ? "=\"" + *value + "\"" : " is not set");
}

std::string spelled(const Vendor& vendor, const Library& library, const char* function) {
  std::vector<std::string> symbols = vendor.symbols(function);
  for (const std::string& symbol : symbols) {
    if (library.has(symbol.c_str())) return symbol;
  }
  return symbols.back();
}

Runtime load(const Vendor& vendor) {
  std::vector<std::string> required;
#define X(name, result, parameters) \
  if (auto symbols = vendor.symbols(#name); symbols.size() == 1) required.push_back(symbols[0]);
  HETCOMM_RUNTIME_SYMBOLS(X)
#undef X
  Library library = Library::find(vendor.runtime_search(), required);
  Runtime runtime;
  runtime.vendor = &vendor;
  runtime.path = library.path();
#define X(name, result, parameters) \
  runtime.name = library.symbol<result(*) parameters>(spelled(vendor, library, #name).c_str());
  HETCOMM_RUNTIME_SYMBOLS(X)
#undef X
  runtime.emulated = library.has("hetcomm_emulated_vendor");
  if (runtime.emulated) {
    runtime.reached = library.symbol<int (*)()>("hetcomm_emulated_direct")() != 0;
  }
  int version = 0;
  if (int error = runtime.RuntimeGetVersion(&version)) {
    runtime.version = vendor.runtime.name;
    count_devices(runtime);  // without a device some runtimes answer nothing; this says why
    throw Error(Code::vendor, runtime.path + ": " +
                                  runtime.failure(vendor.symbols("RuntimeGetVersion")[0], error));
  }
  runtime.version = vendor.version_text(version);
  if (version < vendor.runtime.oldest_version) {
    throw Error(Code::vendor, std::string("expected ") +
                                  vendor.version_text(vendor.runtime.oldest_version) +
                                  " or newer; got " + runtime.version + " from " + runtime.path +
                                  "; " + vendor.runtime_search().remedy);
  }
  log(LogLevel::info, runtime.version + " from " + runtime.path);
  return runtime;
}

}  // namespace

std::string Runtime::failure(const std::string& symbol, int error) const {
  const char* text = GetErrorString(error);
  GetLastError();
  return symbol + ": " + (text ? text : "unknown error") + " (error " + std::to_string(error) + ")";
}

const Runtime& load_runtime(const Vendor& vendor) {
  struct Loaded {
    pid_t process;
    Runtime runtime;
  };
  static std::mutex mutex;
  static auto* all = new std::map<const Vendor*, Loaded>;  // used until the process ends
  std::lock_guard lock(mutex);
  auto found = all->find(&vendor);
  if (found == all->end()) found = all->emplace(&vendor, Loaded{getpid(), load(vendor)}).first;
  if (found->second.process != getpid()) {
    throw Error(Code::vendor, std::string("expected a process that was not forked after ") +
                                  vendor.runtime.name + " had been used; got a child of process " +
                                  std::to_string(found->second.process) +
                                  ", which had; start processes with the method \"spawn\", or "
                                  "fork before the first use");
  }
  return found->second.runtime;
}

int count_devices(const Runtime& runtime) {
  const Vendor& vendor = *runtime.vendor;
  int count = 0;
  int error = runtime.GetDeviceCount(&count);
  if (error == kSuccess && count > 0) return count;
  std::string text = std::string("expected an accelerator of vendor ") + vendor.name + "; got ";
  text += error == kSuccess ? "0 devices"
                            : runtime.failure(vendor.symbols("GetDeviceCount").front(), error);
  text += " with " + runtime.version + " from " + runtime.path + "; ";
  int driver = 0;
  if (runtime.DriverGetVersion(&driver) != kSuccess) runtime.GetLastError(), driver = 0;
  if (driver == 0) {
    text += std::string("this process finds no ") + vendor.runtime.name +
            " driver: install it, or, in a container, pass the devices through";
  } else if (error == kInsufficientDriver) {
    text += "the driver is made for " + vendor.version_text(driver) +
            ": update it, or take a runtime that is no newer (" + vendor.runtime.variable + ")";
  } else {
    text += visible(vendor) + ": name a device there, or check the driver";
  }
  throw Error(Code::vendor, text + "; or set HETCOMM_VENDOR=cpu");
}

}  // namespace hetcomm
