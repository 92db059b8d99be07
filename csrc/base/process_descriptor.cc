#include "base/process_descriptor.h"

#include <pthread.h>
#include <unistd.h>

#include <set>

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

ProcessDescriptor::ProcessDescriptor(int number) : number_(number) {
  if (number < 0) return;
  std::lock_guard lock(registry().mutex);
  registry().descriptors.insert(number);
}

ProcessDescriptor::~ProcessDescriptor() {
  if (number_ < 0 || mark_.inherited()) return;
  std::lock_guard lock(registry().mutex);  // a fork comes before both, or after both
  registry().descriptors.erase(number_);
  close(number_);
}

}  // namespace hetcomm
