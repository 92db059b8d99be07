#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace hetcomm {

// A file descriptor that closes with its owner; -1 if there is none.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  operator int() const { return number_; }

 private:
  int number_;
};

// An empty file in memory; flags as for memfd_create(). The file cannot be executed, as
// vm.memfd_noexec of Linux 6.3 may demand. -1 and errno on failure.
inline Descriptor make_memory_descriptor(const char* name, unsigned flags) {
  constexpr unsigned no_executable = 8;  // MFD_NOEXEC_SEAL of Linux 6.3
  Descriptor file(memfd_create(name, flags | no_executable));
  if (file < 0 && errno == EINVAL) file = Descriptor(memfd_create(name, flags));
  return file;
}

}  // namespace hetcomm
