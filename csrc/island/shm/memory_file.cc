#include "island/shm/memory_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cerrno>

#include "base/page_size.h"

namespace hetcomm::shm {
namespace {

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE of Linux 5.14
constexpr int kNoSuchChange = -1;

// For older kernels: rt_sigprocmask() reads the set before it refuses the kind of change. It
// returns EFAULT for a page that the system cannot allocate. Reading a hole of such a file fills
// the hole.
int touch(uintptr_t begin, uintptr_t end) {
  for (uintptr_t page = begin; page < end; page += static_cast<uintptr_t>(page_size())) {
    syscall(SYS_rt_sigprocmask, kNoSuchChange, page, nullptr, sizeof(uint64_t));
    if (errno == EFAULT) return ENOMEM;
  }
  return 0;
}

}  // namespace

Descriptor make_memory_file(const char* name, int64_t bytes) {
  Descriptor file = make_memory_descriptor(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0 || ftruncate(file, bytes) != 0 ||
      fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const int reason = errno;
    file = Descriptor();
    errno = reason;
  }
  return file;
}

int populate(const std::byte* begin, size_t bytes) {
  const auto page = static_cast<uintptr_t>(page_size());
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin) / page * page;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(begin) + bytes + page - 1) / page * page;
  int result;
  do {
    result = madvise(reinterpret_cast<void*>(first), last - first, kPopulateWrite);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return 0;
  return errno == EINVAL ? touch(first, last) : errno;
}

}  // namespace hetcomm::shm
