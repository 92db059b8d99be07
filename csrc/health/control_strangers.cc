// Strangers at the control port: accepted connections that have not proven the group's key.

#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/system_text.h"
#include "health/control.h"

namespace hetcomm {
namespace {

constexpr rlim_t kMostStrangers = 1024;
constexpr rlim_t kPartOfDescriptors = 8;  // of which strangers take one at most
constexpr int kMostAccepted = SOMAXCONN;  // at one poll: a full queue
constexpr int kMostHeard = 256;

size_t most_strangers() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMostStrangers;
  return std::clamp<rlim_t>(limit.rlim_cur / kPartOfDescriptors, 1, kMostStrangers);
}

}  // namespace

// A ready listener that cannot accept would wake the progress thread all the time. Without the
// watch the regular polls accept connections.
void ControlPlane::watch_listeners(bool on) {
  if (on == listeners_watched_) return;
  listeners_watched_ = on;
  for (int listener : listeners_) on ? owner_.watch(listener) : owner_.unwatch(listener);
}

void ControlPlane::warn_once(bool& warned, const std::string& text) {
  if (!std::exchange(warned, true)) log(LogLevel::warning, text, rank_);
}

void ControlPlane::accept_waiting() {
  bool all = true;
  for (int listener : listeners_) all &= accept_waiting(listener);
  watch_listeners(all);
}

// False if there is no descriptor for connections that wait.
bool ControlPlane::accept_waiting(int listener) {
  for (int number = 0; number < kMostAccepted; ++number) {
    ProcessDescriptor accepted(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (accepted < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      const std::string why = system_text("cannot accept control connections: ", kReason,
                                          "; tries again twice a second; raise the descriptor "
                                          "limit (ulimit -n)");
      pollfd waiting{listener, POLLIN, 0};  // accept() looks for a descriptor first
      if (::poll(&waiting, 1, 0) == 0) return true;
      warn_once(warned_of_descriptors_, why);
      if (!make_way()) return false;
      continue;
    }
    for (const size_t most = most_strangers(); silent_.size() + greeted_.size() >= most;) {
      warn_once(warned_of_strangers_,
                std::to_string(most) + " connections of strangers at control port " + contact_ +
                    ": none has proven this group's key; the oldest make way for newer ones; "
                    "keep port scanners away from it");
      if (!make_way()) break;
    }
    auto stranger = std::make_unique<Connection>(
        Connection{std::move(accepted), Session::accepting(group_key_, rank_)});
    stranger->number = ++strangers_;
    epoll_event event{.events = EPOLLIN, .data = {.u64 = stranger->number}};
    if (epoll_ctl(strangers_ready_, EPOLL_CTL_ADD, stranger->descriptor, &event) != 0) {
      unwatched_strangers_ = true;
      warn_once(warned_of_watches_,
                system_text("cannot watch the connections of strangers: ", kReason,
                            "; looks at all of them twice a second; raise "
                            "fs.epoll.max_user_watches"));
    }
    silent_.emplace(stranger->number, std::move(stranger));
  }
  return true;
}

// Drops the oldest stranger without a greeting, or else the oldest. False without strangers.
bool ControlPlane::make_way() {
  if (!silent_.empty()) {
    const uint64_t oldest = silent_.begin()->first;
    hear(*silent_.begin()->second);  // its greeting may have come
    if (silent_.contains(oldest)) drop(*silent_.begin()->second);
    return true;
  }
  if (greeted_.empty()) return false;
  drop(*greeted_.begin()->second);
  return true;
}

void ControlPlane::hear_strangers() {
  epoll_event ready[kMostHeard];
  const int count = epoll_wait(strangers_ready_, ready, kMostHeard, 0);
  std::vector<uint64_t> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(ready[i].data.u64);
  for (const Strangers* strangers : {&silent_, &greeted_}) {
    if (!unwatched_strangers_) break;
    for (const auto& [number, stranger] : *strangers) numbers.push_back(number);
  }
  unwatched_strangers_ = unwatched_strangers_ && !numbers.empty();
  for (uint64_t number : numbers) {
    for (Strangers* strangers : {&silent_, &greeted_}) {
      const auto found = strangers->find(number);
      if (found == strangers->end()) continue;
      hear(*found->second);
      break;
    }
  }
}

void ControlPlane::hear(Connection& stranger) {
  const uint64_t number = stranger.number;
  read(stranger);
  const auto found = silent_.find(number);
  if (found != silent_.end() && found->second->session.greeted()) {
    greeted_.insert(silent_.extract(found));
  }
}

// The stranger is a neighbour.
void ControlPlane::adopt(Connection& stranger) {
  epoll_ctl(strangers_ready_, EPOLL_CTL_DEL, stranger.descriptor, nullptr);
  for (Strangers* strangers : {&silent_, &greeted_}) {
    if (auto found = strangers->extract(stranger.number)) {
      connections_.push_back(std::move(found.mapped()));
    }
  }
  begin(stranger);
}

// Ends the stranger. A reset leaves nothing in the kernel.
void ControlPlane::drop(Connection& stranger) {
  const linger reset{.l_onoff = 1, .l_linger = 0};
  setsockopt(stranger.descriptor, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  epoll_ctl(strangers_ready_, EPOLL_CTL_DEL, stranger.descriptor, nullptr);
  const uint64_t number = stranger.number;
  silent_.erase(number);
  greeted_.erase(number);
}

void ControlPlane::drop_strangers(std::chrono::nanoseconds age) {
  for (Strangers* strangers : {&silent_, &greeted_}) {
    while (!strangers->empty() && Clock::now() - strangers->begin()->second->since > age) {
      drop(*strangers->begin()->second);
    }
  }
}

}  // namespace hetcomm
