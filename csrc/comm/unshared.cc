#include "comm/unshared.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

namespace hetcomm {
namespace {

struct Registry {
  std::mutex mutex;  // held across fork(), so that the child finds the set whole
  std::set<int> descriptors;

  Registry();
};

Registry& registry() {
  static auto* all = new Registry;
  return *all;
}

void before_fork() { registry().mutex.lock(); }

void in_parent() { registry().mutex.unlock(); }

void in_child() {
  for (int descriptor : registry().descriptors) close(descriptor);
  registry().descriptors.clear();
  registry().mutex.unlock();
}

Registry::Registry() { pthread_atfork(before_fork, in_parent, in_child); }

}  // namespace

void unshared::add(int descriptor) {
  std::lock_guard lock(registry().mutex);
  registry().descriptors.insert(descriptor);
}

void unshared::remove(int descriptor) {
  std::lock_guard lock(registry().mutex);
  registry().descriptors.erase(descriptor);
}

}  // namespace hetcomm
