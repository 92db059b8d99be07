// Preloaded into a rank. Makes system calls fail or stand still while the file exists that a
// variable names.

#include <dlfcn.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>

namespace {

bool holds(const char* variable) {
  const char* const flag = std::getenv(variable);
  return flag != nullptr && access(flag, F_OK) == 0;
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// The system calls of a file system that stands still do not return.
void stand_still() {
  while (holds("STAND_STILL")) usleep(10'000);
}

bool stands_still(const char* path) {
  const char* const folder = std::getenv("STILL_FOLDER");
  return folder != nullptr && std::strncmp(path, folder, std::strlen(folder)) == 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const unsigned mode = va_arg(more, unsigned);
  va_end(more);
  if (stands_still(path)) stand_still();
  static auto* const real = next<int(const char*, int, ...)>("open");
  return real(path, flags, mode);
}

int open64(const char* path, int flags, ...) __attribute__((alias("open")));

int unlink(const char* path) noexcept {
  if (stands_still(path)) stand_still();
  static auto* const real = next<int(const char*)>("unlink");
  return real(path);
}

ssize_t write(int descriptor, const void* bytes, size_t count) {
  const bool log = descriptor == STDERR_FILENO && std::getenv("STILL_LOG") != nullptr;
  if (log) stand_still();
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  return real(descriptor, bytes, count);
}

// As if the clock were set back by an hour after each look.
int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static auto* const real = next<int(clockid_t, timespec*)>("clock_gettime");
  const int result = real(clock, time);
  if (clock == CLOCK_REALTIME && std::getenv("CLOCK_AHEAD") != nullptr) time->tv_sec += 3600;
  return result;
}

int epoll_ctl(int epoll, int operation, int descriptor, epoll_event* event) noexcept {
  if (operation == EPOLL_CTL_ADD && holds("NO_WATCHES")) {
    errno = ENOSPC;
    return -1;
  }
  static auto* const real = next<int(int, int, int, epoll_event*)>("epoll_ctl");
  return real(epoll, operation, descriptor, event);
}

// Control connections have no address here.
int bind(int socket, const sockaddr* address, socklen_t length) noexcept {
  if (address->sa_family == AF_INET && std::getenv("NO_BIND") != nullptr) {
    errno = EACCES;
    return -1;
  }
  static auto* const real = next<int(int, const sockaddr*, socklen_t)>("bind");
  return real(socket, address, length);
}

int epoll_wait(int epoll, epoll_event* events, int most, int time) {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof name);
  if (std::strcmp(name, "hetcomm") == 0 && holds("THROW") && unlink(std::getenv("THROW")) == 0) {
    throw 7;
  }
  if (std::strcmp(name, "hetcomm") == 0 && holds("END") && unlink(std::getenv("END")) == 0) {
    pthread_exit(nullptr);
  }
  static auto* const real = next<int(int, epoll_event*, int, int)>("epoll_wait");
  return real(epoll, events, most, time);
}

}  // extern "C"

// An allocation may change errno.
void* operator new(size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  if (std::getenv("CHANGE_ERRNO") != nullptr) errno = EDOM;
  return memory;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
