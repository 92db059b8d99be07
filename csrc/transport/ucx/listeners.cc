#include "transport/ucx/listeners.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/config.h"
#include "base/log.h"
#include "base/system_text.h"
#include "transport/ucx/settings.h"

#ifndef SO_MEMINFO
#define SO_MEMINFO 55
#endif

namespace hetcomm {
namespace {

constexpr size_t kMostInstructions = 4096;  // of the kernel
constexpr size_t kLeastInstructions = 64;
constexpr auto kLookEvery = std::chrono::seconds(1);
constexpr auto kAcceptBound = std::chrono::seconds(1);

// Descriptors of internet sockets of this process, by inode. False if nobody can tell.
bool find_sockets(std::map<uint64_t, int>& found) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string name = entry.path().filename();
    int descriptor = -1, domain = 0;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    socklen_t size = sizeof domain;
    struct stat file{};
    if (getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0) continue;
    if (domain != AF_INET && domain != AF_INET6) continue;
    if (fstat(descriptor, &file) == 0) found[file.st_ino] = descriptor;
  }
  return !error;
}

sockaddr_storage address_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size);
  return address;
}

uint16_t port_of(const sockaddr_storage& address) {  // in the order of the network
  return address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<const sockaddr_in&>(address).sin_port;
}

bool listens(int descriptor) {
  int listening = 0;
  socklen_t size = sizeof listening;
  return getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening;
}

std::string name_of(uint16_t port) { return "UCX's TCP port " + std::to_string(ntohs(port)); }

// What the kernel has dropped at a socket.
uint32_t drops(int descriptor) {
  constexpr size_t kDrops = 8;  // SK_MEMINFO_DROPS of linux/sock_diag.h
  std::array<uint32_t, kDrops + 1> counts{};
  socklen_t size = sizeof counts;
  const bool known = getsockopt(descriptor, SOL_SOCKET, SO_MEMINFO, counts.data(), &size) == 0;
  return known && size == sizeof counts ? counts[kDrops] : 0;
}

void warn_unfiltered(const std::string& why) {
  static std::atomic<bool> said{false};
  if (said.exchange(true)) return;
  log(LogLevel::warning, "UCX's TCP ports take connections from anybody, because " + why +
                             "; a program that reaches them can write this process's memory: keep "
                             "the network private, see docs/security.md");
}

}  // namespace

UcxListeners::UcxListeners() { find_sockets(before_); }

void UcxListeners::find(std::string_view worker_address, bool expected) {
  std::map<uint64_t, int> now;
  if (!find_sockets(now)) return warn_unfiltered("/proc/self/fd cannot be read");
  for (const auto& [inode, descriptor] : now) {
    if (before_.contains(inode) || !listens(descriptor)) continue;
    const sockaddr_storage address = address_of(descriptor);
    const uint16_t port = port_of(address);
    // Another thread may just have made a listener for somebody else.
    const std::string_view bytes(reinterpret_cast<const char*>(&port), sizeof port);
    if (worker_address.find(bytes) == std::string_view::npos) continue;
    listeners_.push_back(
        {descriptor, port, address_text(reinterpret_cast<const sockaddr&>(address))});
  }
  if (listeners_.empty()) {
    if (expected) warn_unfiltered("none of their sockets was found");
    return;
  }
  changed_ = true;
  admit(setting("HETCOMM_UCX_SOURCES", ""));
  apply();
  cut_off_strangers();
}

// Nobody knows a new worker's address. So connections from before the filter are strangers'.
void UcxListeners::cut_off_strangers() const {
  const Deadline deadline(kAcceptBound);
  for (const Listener& listener : listeners_) {
    pollfd waiting{listener.descriptor, POLLIN, 0};  // until UCX's thread has accepted
    while (poll(&waiting, 1, 0) > 0 && !deadline.passed()) poll(nullptr, 0, 1);
  }
  std::map<uint64_t, int> now;
  find_sockets(now);
  for (const auto& [inode, descriptor] : now) {
    if (before_.contains(inode) || listens(descriptor)) continue;
    const uint16_t port = port_of(address_of(descriptor));
    for (const Listener& listener : listeners_) {
      if (port == listener.port) shutdown(descriptor, SHUT_RDWR);
    }
  }
}

std::vector<std::string> UcxListeners::own_sources() const {
  std::vector<std::string> sources;
  if (listeners_.empty()) return sources;
  for (const Listener& listener : listeners_) sources.push_back(listener.address);
  for (std::string& address : outward_addresses()) sources.push_back(std::move(address));
  return sources;
}

void UcxListeners::admit(std::string_view sources) {
  if (listeners_.empty()) return;
  std::istringstream from{std::string(sources)};
  for (std::string source; std::getline(from, source, ',');) {
    admitted_.add(source);
    changed_ = true;
  }
}

// UCX closes a listener that cannot accept. Its number may then belong to another socket.
bool UcxListeners::lives(const Listener& listener) {
  return listens(listener.descriptor) && port_of(address_of(listener.descriptor)) == listener.port;
}

// The kernel may have less room for a filter than for the most instructions.
bool UcxListeners::attach(const Listener& listener, bool& exact) const {
  for (size_t most = kMostInstructions; most >= kLeastInstructions; most /= 2) {
    SourceFilter::Program program = admitted_.program(most);
    const sock_fprog filter{static_cast<uint16_t>(program.code.size()), program.code.data()};
    const int failed =
        setsockopt(listener.descriptor, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
    exact = program.exact;
    if (failed == 0) return true;
    if (errno != ENOMEM) return false;
  }
  return false;
}

void UcxListeners::apply() {
  if (!std::exchange(changed_, false) || applied_ == admitted_) return;
  for (const Listener& listener : listeners_) {
    bool exact = true;
    if (!lives(listener)) continue;
    if (!attach(listener, exact)) {
      // A filter that is there already would drop new peers.
      const std::string why = system_text(kReason);
      setsockopt(listener.descriptor, SOL_SOCKET, SO_DETACH_FILTER, nullptr, 0);
      warn_unfiltered("the kernel refuses a filter of their packets: " + why);
    } else if (!exact) {
      log(LogLevel::info, name_of(listener.port) +
                              " admits neighbours of the ranks' addresses, too: a filter of the "
                              "kernel has no room for so many");
    }
  }
  applied_ = admitted_;
}

void UcxListeners::look() {
  if (warned_ || listeners_.empty() || Clock::now() < looks_at_) return;
  looks_at_ = Clock::now() + kLookEvery;
  for (const Listener& listener : listeners_) {
    const uint32_t dropped = lives(listener) ? drops(listener.descriptor) : 0;
    if (dropped == 0 || std::exchange(warned_, true)) continue;
    log(LogLevel::warning,
        name_of(listener.port) + " of " + listener.address + " dropped " + std::to_string(dropped) +
            " packets: only addresses of ranks may connect, or its queue was full. If a rank's "
            "address changes on the way here (NAT), name the changed one in HETCOMM_UCX_SOURCES; "
            "see docs/security.md");
  }
}

}  // namespace hetcomm
