#include "device/kernel_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/config.h"
#include "base/descriptor.h"
#include "base/fnv.h"
#include "base/log.h"
#include "base/packing.h"
#include "base/status.h"
#include "base/system_text.h"

namespace hetcomm {
namespace {

constexpr const char* kVariable = "HETCOMM_KERNEL_CACHE";

// Empty: nothing is kept.
std::string folder() {
  if (const auto given = setting(kVariable)) return *given == "0" ? "" : *given;
  if (const auto cache = environment_variable("XDG_CACHE_HOME"); cache && !cache->empty()) {
    return *cache + "/hetcomm/kernels";
  }
  const auto home = environment_variable("HOME");
  return home && !home->empty() ? *home + "/.cache/hetcomm/kernels" : "";
}

void warn(const std::string& path, const std::string& why) {
  static std::atomic<bool> warned = false;
  if (warned.exchange(true)) return;
  log(LogLevel::warning, "compiled kernels are not kept in " + path + " (" + why +
                             "), so every process compiles them; set " + kVariable +
                             " to a folder of yours, or to 0");
}

// All that decides the code.
std::string key_of(const Vendor& vendor, const std::string& architecture,
                   const std::string& kernel) {
  Packer key;
  key.put(describe_compiler(vendor)).put(architecture).put(kernel);
  for (const std::string& option : vendor.compiler.options) key.put(option);
  key.put(fnv1a(device_text()));
  return key.take();
}

std::string record_of(const std::string& key, const CompiledKernel& compiled) {
  return Packer().put(key).put(compiled.symbol).put(compiled.code).put(fnv1a(compiled.code)).take();
}

// Only this user may have written the file.
std::optional<std::string> read(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat facts{};
  if (file < 0 || fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode)) return std::nullopt;
  if (facts.st_uid != geteuid() || (facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    warn(path, "others can write it");
    return std::nullopt;
  }
  std::string bytes(static_cast<size_t>(facts.st_size), '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::read(file, bytes.data() + done, bytes.size() - done);
    if (got <= 0 && errno != EINTR) return std::nullopt;
    if (got > 0) done += static_cast<size_t>(got);
  }
  return bytes;
}

std::optional<CompiledKernel> find(const std::string& path, const std::string& key) {
  const auto bytes = read(path);
  if (!bytes) return std::nullopt;
  try {
    Unpacker record(*bytes);
    if (record.text() != key) return std::nullopt;
    CompiledKernel compiled;
    compiled.symbol = record.text();
    compiled.code = record.text();
    const bool whole = record.number() == fnv1a(compiled.code) && record.ended();
    return whole ? std::optional(std::move(compiled)) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;  // a damaged file, which is written anew
  }
}

// Whole or not at all, also beside other processes.
void write(const std::string& path, const std::string& bytes) {
  static std::atomic<int> number = 0;
  const std::string beside = path + "." + std::to_string(getpid()) + "." + std::to_string(++number);
  const Descriptor file(open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  size_t done = 0;
  while (file >= 0 && done < bytes.size()) {
    const ssize_t put = ::write(file, bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno != EINTR) break;
    if (put > 0) done += static_cast<size_t>(put);
  }
  if (file >= 0 && done == bytes.size() && std::rename(beside.c_str(), path.c_str()) == 0) return;
  warn(path, system_text(kReason));
  unlink(beside.c_str());
}

}  // namespace

CompiledKernel cached_kernel(const Vendor& vendor, const std::string& architecture,
                             const std::string& kernel) {
  const std::string place = architecture.empty() ? "" : folder();
  if (place.empty()) return compile_kernel(vendor, architecture, kernel);
  const std::string key = key_of(vendor, architecture, kernel);
  char name[17];
  std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(fnv1a(key)));
  const std::string path = place + "/" + name;
  if (auto kept = find(path, key)) return std::move(*kept);
  CompiledKernel compiled = compile_kernel(vendor, architecture, kernel);
  std::error_code failed;
  std::filesystem::create_directories(place, failed);
  if (failed) {
    warn(place, failed.message());
  } else {
    write(path, record_of(key, compiled));
  }
  return compiled;
}

}  // namespace hetcomm
