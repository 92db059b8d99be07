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
constexpr off_t kMostBytes = 64 << 20;  // of a file; a kernel takes some 100 KB

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

// This user or root has the file or folder, and nobody else may write there.
bool is_safe(const std::string& path, const struct stat& facts) {
  const bool ours = facts.st_uid == geteuid() || facts.st_uid == 0;
  if (ours && (facts.st_mode & (S_IWGRP | S_IWOTH)) == 0) return true;
  warn(path, ours ? "others can write it; chmod go-w" : "it belongs to another user");
  return false;
}

// -1 if there is none, or others could have put files there. Makes the folder if `make` says so.
Descriptor open_folder(const std::string& path, bool make) {
  if (make) {
    std::error_code failed;  // open() tells
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), failed);
    mkdir(path.c_str(), 0700);
  }
  Descriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat facts{};
  if (folder < 0 || fstat(folder, &facts) != 0) {
    if (make) warn(path, system_text(kReason));
    return Descriptor();
  }
  return is_safe(path, facts) ? std::move(folder) : Descriptor();
}

// Never waits: the name may be that of a pipe.
std::optional<std::string> read(int folder, const std::string& name) {
  const Descriptor file(
      openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat facts{};
  if (file < 0 || fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode)) return std::nullopt;
  if (!is_safe(name, facts) || facts.st_size > kMostBytes) return std::nullopt;
  std::string bytes(static_cast<size_t>(facts.st_size), '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::read(file, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    done += static_cast<size_t>(got);
  }
  return bytes;
}

std::optional<CompiledKernel> find(int folder, const std::string& name, const std::string& key) {
  const auto bytes = read(folder, name);
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

// Whole or not at all, also beside other processes. Takes the place of anything but a folder.
void write(int folder, const std::string& place, const std::string& name,
           const std::string& bytes) {
  static std::atomic<int> number = 0;
  const std::string beside = name + "." + std::to_string(getpid()) + "." + std::to_string(++number);
  const Descriptor file(
      openat(folder, beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  size_t done = 0;
  while (file >= 0 && done < bytes.size()) {
    const ssize_t put = ::write(file, bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno != EINTR) break;
    if (put > 0) done += static_cast<size_t>(put);
  }
  const bool whole = file >= 0 && done == bytes.size();
  if (whole && renameat(folder, beside.c_str(), folder, name.c_str()) == 0) return;
  warn(place, system_text(kReason));
  unlinkat(folder, beside.c_str(), 0);
}

}  // namespace

CompiledKernel cached_kernel(const Vendor& vendor, const std::string& architecture,
                             const std::string& kernel) {
  const std::string place = architecture.empty() ? "" : folder();
  if (place.empty()) return compile_kernel(vendor, architecture, kernel);
  const std::string key = key_of(vendor, architecture, kernel);
  char name[17];
  std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(fnv1a(key)));
  if (const Descriptor kept = open_folder(place, false); kept >= 0) {
    if (auto found = find(kept, name, key)) return std::move(*found);
  }
  CompiledKernel compiled = compile_kernel(vendor, architecture, kernel);
  if (const Descriptor kept = open_folder(place, true); kept >= 0) {
    write(kept, place, name, record_of(key, compiled));
  }
  return compiled;
}

}  // namespace hetcomm
