#include "island/shm/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <tuple>

#include "base/available_memory.h"
#include "base/config.h"
#include "base/log.h"
#include "base/page_size.h"
#include "base/status.h"
#include "base/system_text.h"
#include "island/shm/memory_file.h"
#include "island/shm/parts.h"

namespace hetcomm::shm {
namespace {

constexpr int64_t kHugePage = 2 << 20;
// Every rank of a host maps every arena: those of 64 ranks fit into the 128 TiB of addresses.
constexpr int64_t kMostBytes = int64_t{1} << 40;
// Where the process may have few addresses, an arena takes this part. A process maps the arenas of
// all ranks of its host, and its own once more: of 8 ranks 9/16.
constexpr rlim_t kPartOfAddresses = 16;

Error unavailable(uint64_t bytes, const std::string& got) {
  return Error(Code::vendor,
               "shared allocation: expected " +
                   format_bytes(static_cast<int64_t>(std::min<uint64_t>(bytes, INT64_MAX))) +
                   " of memory; got: " + got + "; allocate less, or use ordinary memory");
}

struct Limit {
  int64_t bytes;
  const char* name;
};

// The lowest limit of the process on an arena.
std::optional<Limit> lowest_limit() {
  std::optional<Limit> lowest;
  for (const auto& [resource, part, name] :
       {std::tuple(RLIMIT_AS, kPartOfAddresses, "ulimit -v"), {RLIMIT_FSIZE, 1, "ulimit -f"}}) {
    rlimit limit{};
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) continue;
    const auto bytes = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur / part, kMostBytes));
    if (!lowest || bytes < lowest->bytes) lowest = {bytes, name};
  }
  return lowest;
}

}  // namespace

Arena::Arena() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  bytes_ = std::min(round_up((pages > 0 ? pages : 1 << 20) * page_size(), kHugePage), kMostBytes);
  const auto limit = lowest_limit();
  if (limit && limit->bytes < static_cast<int64_t>(bytes_)) {
    bytes_ = limit->bytes / kHugePage * kHugePage;
    limit_ = std::string(" within ") + limit->name;
    if (bytes_ == 0) {
      problem_ = "no room for a huge page" + limit_;
      return;
    }
  }
  descriptor_ = make_memory_file("hetcomm", static_cast<int64_t>(bytes_));
  struct stat found{};
  if (descriptor_ < 0 || fstat(descriptor_, &found) != 0) {
    problem_ = system_text("no file in memory: ", kReason);
    descriptor_ = Descriptor();
    return;
  }
  device_ = found.st_dev;
  inode_ = found.st_ino;
  free_[0] = bytes_;
}

void Arena::map(size_t wanted) {
  if (base_.load(std::memory_order_relaxed) != nullptr) return;
  // The system aligns a mapping of whole huge pages to them, where it uses huge pages.
  void* mapped =
      mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor_, 0);
  if (mapped == MAP_FAILED) {
    throw unavailable(wanted, system_text(kReason, " for addresses (ulimit -v)"));
  }
  madvise(mapped, bytes_, MADV_HUGEPAGE);
  madvise(mapped, bytes_, MADV_DONTDUMP);
  base_.store(static_cast<std::byte*>(mapped), std::memory_order_release);
}

std::shared_ptr<void> Arena::allocate(size_t bytes) {
  if (descriptor_ < 0) throw unavailable(bytes, problem_);
  // The system may kill a process that takes more than there is. Large allocations check, because
  // the check takes little of their time.
  uint64_t most = bytes_;
  if (bytes >= kHugePage) most = std::min(most, static_cast<uint64_t>(available_memory()));
  if (bytes > most) {
    throw unavailable(bytes, format_bytes(static_cast<int64_t>(most)) + " available" +
                                 (most == bytes_ ? limit_ : ""));
  }
  const uint64_t rounded = round_up(bytes > 0 ? bytes : 1, page_size());
  uint64_t offset;
  {
    std::lock_guard lock(mutex_);
    map(bytes);
    warn();
    offset = reserve(rounded, rounded >= kHugePage ? kHugePage : page_size());
  }
  std::byte* begin = base_.load(std::memory_order_relaxed) + offset;
  std::shared_ptr<void> memory(begin, [this, offset, rounded](void*) { release(offset, rounded); });
  // Now, so that lack of memory is an error here, and no signal at the first touch.
  if (const int error = populate(begin, rounded); error != 0) {
    throw unavailable(rounded, std::strerror(error));
  }
  return memory;
}

void Arena::tell_unshared(const std::string& why) {
  std::lock_guard lock(mutex_);
  unshared_ = why;
  warn();
}

void Arena::warn() {
  if (warned_ || unshared_.empty() || base_.load(std::memory_order_relaxed) == nullptr) return;
  warned_ = true;
  log(LogLevel::warning, "shared allocations are copied like other memory: " + unshared_);
}

uint64_t Arena::reserve(uint64_t bytes, uint64_t alignment) {
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [begin, length] = *range;
    const uint64_t offset = round_up(begin, alignment);
    if (offset + bytes > begin + length) continue;
    free_.erase(range);
    if (offset > begin) free_[begin] = offset - begin;
    if (begin + length > offset + bytes) free_[offset + bytes] = begin + length - offset - bytes;
    return offset;
  }
  throw unavailable(bytes, "no range of addresses that is free" + limit_);
}

void Arena::release(uint64_t offset, uint64_t bytes) {
  if (mark_.inherited()) return;  // the parent of a forked child still uses the memory
  fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
  std::lock_guard lock(mutex_);
  auto [range, added] = free_.emplace(offset, bytes);
  if (auto next = std::next(range); next != free_.end() && next->first == offset + bytes) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range == free_.begin()) return;
  if (auto before = std::prev(range); before->first + before->second == offset) {
    before->second += range->second;
    free_.erase(range);
  }
}

}  // namespace hetcomm::shm
