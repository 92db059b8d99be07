#include "base/close_on_fork.h"

#include <pthread.h>
#include <unistd.h>

#include <set>

#include "base/fork.h"

namespace hetcomm {
namespace {

struct Registry {
  MutexAcrossFork mutex;
  std::set<int> descriptors;

  Registry();
};

Registry& registry() {
  static auto* all = new Registry;
  return *all;
}

void close_in_child() {
  std::lock_guard lock(registry().mutex);
  for (int descriptor : registry().descriptors) close(descriptor);
  registry().descriptors.clear();
}

Registry::Registry() { pthread_atfork(nullptr, nullptr, close_in_child); }

}  // namespace

void close_on_fork::add(int descriptor) {
  std::lock_guard lock(registry().mutex);
  registry().descriptors.insert(descriptor);
}

void close_on_fork::remove(int descriptor) {
  std::lock_guard lock(registry().mutex);
  registry().descriptors.erase(descriptor);
}

}  // namespace hetcomm
