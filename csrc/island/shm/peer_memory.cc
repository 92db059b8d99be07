#include "island/shm/peer_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "base/fork.h"
#include "base/log.h"
#include "island/shm/arena.h"

namespace hetcomm::shm {

struct MappedArena {
  MappedArena(void* mapped, uint64_t length)
      : base(static_cast<const std::byte*>(mapped)), bytes(length) {}
  ~MappedArena() { munmap(const_cast<std::byte*>(base), bytes); }
  MappedArena(const MappedArena&) = delete;

  const std::byte* const base;
  const uint64_t bytes;
};

PeerMemory::PeerMemory(Segment& segment, const ShmOptions& options)
    : segment_(segment), options_(options) {}

void PeerMemory::introduce() {
  const Arena& arena = Arena::mine();
  MemberState& mine = segment_.member(options_.member);
  mine.process = static_cast<int32_t>(getpid());
  mine.arena_descriptor = arena.descriptor();
  mine.arena_device = arena.device();
  mine.arena_inode = arena.inode();
  mine.arena_bytes = arena.bytes();
}

// Goes by the number of the process, which may belong to another process here. So the file is
// checked before the open, which may block or have effects, and after.
int PeerMemory::open_arena(int member, int& error) const {
  const MemberState& peer = segment_.member(member);
  const std::string path =
      "/proc/" + std::to_string(peer.process) + "/fd/" + std::to_string(peer.arena_descriptor);
  struct stat found{};
  auto is_arena = [&] {
    return S_ISREG(found.st_mode) && found.st_dev == peer.arena_device &&
           found.st_ino == peer.arena_inode &&
           static_cast<uint64_t>(found.st_size) == peer.arena_bytes;
  };
  auto fail = [&](int why) {
    error = why;
    return -1;
  };
  if (peer.arena_descriptor < 0) return fail(ENOMEM);
  if (stat(path.c_str(), &found) != 0) return fail(errno);
  if (!is_arena()) return fail(ESRCH);
  const int opened = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (opened < 0) return fail(errno);
  if (fstat(opened, &found) == 0 && is_arena()) return opened;
  close(opened);
  return fail(ESRCH);
}

void PeerMemory::probe() {
  MemberState& mine = segment_.member(options_.member);
  for (int member = 0; member < options_.members; ++member) {
    int error = 0;
    const int opened = open_arena(member, error);
    if (opened >= 0) {
      close(opened);
      continue;
    }
    mine.arena_missed = member + 1;
    mine.arena_error = error;
    return;
  }
}

void PeerMemory::conclude() {
  reason_.clear();
  for (int member = 0; member < options_.members && reason_.empty(); ++member) {
    const MemberState& peer = segment_.member(member);
    if (peer.arena_missed == 0) continue;
    reason_ = "rank " + std::to_string(options_.rank(member)) + " cannot open that of rank " +
              std::to_string(options_.rank(peer.arena_missed - 1)) + ": " +
              std::strerror(peer.arena_error);
  }
  if (!usable()) Arena::mine().tell_unshared(reason_);
}

std::string PeerMemory::describe() const {
  return usable() ? "shared allocations in place"
                  : "shared allocations like other memory (" + reason_ + ")";
}

// One mapping of an arena for all islands of this process.
std::shared_ptr<const MappedArena> PeerMemory::mapped(int member, int& error) const {
  struct Mapped {
    std::mutex mutex;
    std::map<std::tuple<int32_t, uint64_t, uint64_t>, std::weak_ptr<const MappedArena>> all;
  };
  auto& [mutex, all] = of_process<Mapped>();
  const MemberState& peer = segment_.member(member);
  const uint64_t bytes = peer.arena_bytes;
  std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  auto& known = all[{peer.process, peer.arena_inode, bytes}];
  if (auto found = known.lock()) return found;
  const int opened = open_arena(member, error);
  if (opened < 0) return nullptr;
  void* base = mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, opened, 0);
  error = errno;
  close(opened);
  if (base == MAP_FAILED) return nullptr;
  madvise(base, bytes, MADV_HUGEPAGE);
  madvise(base, bytes, MADV_DONTDUMP);
  auto made = std::make_shared<const MappedArena>(base, bytes);
  known = made;
  return made;
}

bool PeerMemory::map() {
  if (failed_ || !mapped_.empty()) return !failed_;
  std::vector<std::shared_ptr<const MappedArena>> arenas;
  for (int member = 0; member < options_.members; ++member) {
    int error = 0;
    arenas.push_back(mapped(member, error));
    if (arenas.back() != nullptr) continue;
    failed_ = true;
    log(LogLevel::warning,
        "shared allocations are copied like other memory: those of rank " +
            std::to_string(options_.rank(member)) + " cannot be mapped: " + std::strerror(error) +
            "; it may have ended, or addresses are short (ulimit -v)",
        options_.rank(options_.member));
    return false;
  }
  mapped_ = std::move(arenas);
  return true;
}

const std::byte* PeerMemory::at(int member, uint64_t offset, int64_t bytes, Status& status) const {
  const MappedArena& mapped = *mapped_[member];
  if (offset <= mapped.bytes && static_cast<uint64_t>(bytes) <= mapped.bytes - offset) {
    return mapped.base + offset;
  }
  status = Status(Code::transport,
                  "shared memory of rank " + std::to_string(options_.rank(member)) +
                      " is corrupt: it tells of an allocation outside its arena",
                  options_.rank(options_.member), options_.rank(member));
  return nullptr;
}

}  // namespace hetcomm::shm
