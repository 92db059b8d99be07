#include "base/fork.h"

#include <pthread.h>

#include <vector>

namespace hetcomm {

std::atomic<uint32_t> fork_depth{0};

namespace {

struct Mutexes {
  std::mutex mutex;
  std::vector<std::mutex*> all;
};

Mutexes& mutexes() {
  static auto* made = new Mutexes;
  return *made;
}

void before_fork() {
  mutexes().mutex.lock();
  for (std::mutex* one : mutexes().all) one->lock();
}

void after_fork() {
  for (std::mutex* one : mutexes().all) one->unlock();
  mutexes().mutex.unlock();
}

void begin_child() {
  ++fork_depth;
  after_fork();
}

[[maybe_unused]] const int registered = pthread_atfork(before_fork, after_fork, begin_child);

}  // namespace

MutexAcrossFork::MutexAcrossFork() {
  std::lock_guard lock(mutexes().mutex);
  mutexes().all.push_back(this);
}

}  // namespace hetcomm
