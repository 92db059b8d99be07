#include "island/shm/peer_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "island/shm/arena.h"

namespace hetcomm::shm {

PeerMemory::PeerMemory(Segment& segment, const ShmOptions& options)
    : segment_(segment), options_(options), mapped_(options.members) {}

PeerMemory::~PeerMemory() {
  for (const Mapped& mapped : mapped_) {
    if (mapped.base != nullptr) munmap(const_cast<std::byte*>(mapped.base), mapped.bytes);
  }
}

void PeerMemory::introduce() {
  const Arena& arena = Arena::mine();
  MemberState& mine = segment_.member(options_.member);
  mine.process = static_cast<int32_t>(getpid());
  mine.arena_descriptor = arena.descriptor();
  mine.arena_inode = arena.inode();
  mine.arena_bytes = arena.bytes();
}

// By the number of the process, which may be another one's here: then the inode differs.
int PeerMemory::open_arena(int member, int& error) const {
  const MemberState& peer = segment_.member(member);
  const std::string path =
      "/proc/" + std::to_string(peer.process) + "/fd/" + std::to_string(peer.arena_descriptor);
  const int opened = peer.arena_descriptor < 0 ? -1 : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  error = peer.arena_descriptor < 0 ? ENOMEM : errno;
  if (opened < 0) return -1;
  struct stat found{};
  if (fstat(opened, &found) == 0 && found.st_ino == peer.arena_inode &&
      static_cast<uint64_t>(found.st_size) == peer.arena_bytes) {
    error = 0;
    return opened;
  }
  close(opened);
  error = ESRCH;
  return -1;
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
    reason_ = "rank " + std::to_string(rank(member)) + " cannot open that of rank " +
              std::to_string(rank(peer.arena_missed - 1)) + ": " + std::strerror(peer.arena_error);
  }
  if (!usable()) Arena::mine().tell_unshared(reason_);
}

std::string PeerMemory::describe() const {
  return usable() ? "shared allocations in place"
                  : "shared allocations like other memory (" + reason_ + ")";
}

bool PeerMemory::map(int member, Status& status) {
  int error = 0;
  const int opened = open_arena(member, error);
  const uint64_t bytes = segment_.member(member).arena_bytes;
  void* mapped = MAP_FAILED;
  if (opened >= 0) {
    mapped = mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, opened, 0);
    error = errno;
    close(opened);
  }
  if (mapped == MAP_FAILED) {
    status = Status(Code::transport,
                    "shared allocations of rank " + std::to_string(rank(member)) +
                        " cannot be mapped: " + std::strerror(error) +
                        "; it may have ended, or addresses are short (ulimit -v)",
                    rank(options_.member), rank(member));
    return false;
  }
  madvise(mapped, bytes, MADV_HUGEPAGE);
  madvise(mapped, bytes, MADV_DONTDUMP);
  mapped_[member] = {static_cast<const std::byte*>(mapped), bytes};
  return true;
}

const std::byte* PeerMemory::at(int member, uint64_t offset, int64_t bytes, Status& status) {
  if (mapped_[member].base == nullptr && !map(member, status)) return nullptr;
  const Mapped& mapped = mapped_[member];
  if (offset <= mapped.bytes && static_cast<uint64_t>(bytes) <= mapped.bytes - offset) {
    return mapped.base + offset;
  }
  status = Status(Code::transport,
                  "shared memory of rank " + std::to_string(rank(member)) +
                      " is corrupt: it tells of an allocation outside its arena",
                  rank(options_.member), rank(member));
  return nullptr;
}

int PeerMemory::rank(int member) const {
  return options_.ranks.empty() ? member : options_.ranks[member];
}

}  // namespace hetcomm::shm
