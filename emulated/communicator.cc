#include "emulated/communicator.h"

#include <strings.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <sstream>
#include <thread>

#include "emulated/registry.h"
#include "emulated/settings.h"

namespace hetcomm::emulated {

namespace {

constexpr uint64_t kLaunches = uint64_t{1} << 20;  // no stream has this number
constexpr int kConnectsAtFirstUse = 22200;         // NCCL 2.22

void refuse_unless(bool legal, const char* field, int value) {
  if (legal || value == kUndefined) return;
  throw Failure{ccl_invalid_argument,
                std::string("ncclConfig_t.") + field + " cannot be " + std::to_string(value)};
}

}  // namespace

int emulated_version() {
  if (settings().injects(FaultKind::old_version)) return 21403;
  if (settings().injects(FaultKind::version)) return static_cast<int>(settings().after);
  return 22803;
}

// Read at the first set-up of the process, as the vendors' libraries read their parameters.
bool connects_at_first_use() {
  static const bool late = [] {
    const char* text = std::getenv("NCCL_RUNTIME_CONNECT");
    const bool asked = text == nullptr || *text == '\0' || std::strtoll(text, nullptr, 0) != 0;
    if (text != nullptr && *text != '\0') {
      inform(std::string("NCCL_RUNTIME_CONNECT set by environment to ") + text + ".");
    }
    return settings().hostile.lazy && asked && emulated_version() >= kConnectsAtFirstUse;
  }();
  return late;
}

void die(const std::string& text) {
  std::fprintf(stderr, "hetcomm emulated %s: %s; the vendor's library would use freed memory\n",
               HETCOMM_EMULATED_VENDOR, text.c_str());
  std::abort();
}

CommunicatorOptions read_config(const Config* config, const CommunicatorOptions& defaults) {
  if (config == nullptr) return defaults;
  if (config->magic != kConfigMagic || config->size < sizeof(Config)) {
    throw Failure{ccl_invalid_argument,
                  "ncclConfig_t was not initialised with NCCL_CONFIG_INITIALIZER"};
  }
  refuse_unless(config->blocking == 0 || config->blocking == 1, "blocking", config->blocking);
  refuse_unless(config->cga_cluster_size >= 0 && config->cga_cluster_size <= 8, "cgaClusterSize",
                config->cga_cluster_size);
  refuse_unless(config->min_ctas > 0, "minCTAs", config->min_ctas);
  refuse_unless(config->max_ctas > 0, "maxCTAs", config->max_ctas);
  refuse_unless(config->min_ctas == kUndefined || config->min_ctas <= config->max_ctas, "maxCTAs",
                config->max_ctas);
  refuse_unless(config->split_share == 0 || config->split_share == 1, "splitShare",
                config->split_share);
  if (config->min_ctas != kUndefined || config->max_ctas != kUndefined) {
    inform("Comm config minCTAs set to " + std::to_string(config->min_ctas) + ", maxCTAs set to " +
           std::to_string(config->max_ctas));
  }
  CommunicatorOptions options;
  if (config->blocking != kUndefined) options.blocking = config->blocking == 1;
  options.split_share = config->split_share == 1;
  if (config->net_name != nullptr) options.network = config->net_name;
  return options;
}

std::shared_ptr<Communicator> Communicator::find(void* handle) {
  if (auto found = registry<Communicator>().find(handle)) return found;
  if (settings().hostile.handles) {
    die("a call for a communicator that was destroyed, aborted or never made");
  }
  throw Failure{ccl_invalid_argument,
                "unknown communicator: it was destroyed, aborted or never made"};
}

void* Communicator::enroll() { return registry<Communicator>().add(shared_from_this()); }

void Communicator::forget() { registry<Communicator>().take(this); }

void Communicator::report(int result, const std::string& text) {
  note(text);
  std::lock_guard lock(mutex_);
  state_ = result;
  changed_.notify_all();
}

void Communicator::in_background(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    state_ = ccl_in_progress;
    ++busy_;
  }
  std::thread([self = shared_from_this(), work = std::move(work)] {
    try {
      work();
    } catch (const Failure& failure) {
      self->report(failure.result, failure.text);
    } catch (const Aborted&) {
      self->report(ccl_remote_error, "the communicator was aborted");
    }
    std::lock_guard lock(self->mutex_);
    if (self->state_ == ccl_in_progress) self->state_ = ccl_success;
    --self->busy_;
    self->changed_.notify_all();
  }).detach();
}

// Polls, because another communicator may raise a shared abort flag without a signal.
template <typename Condition>
void Communicator::wait(std::unique_lock<std::mutex>& lock, const Condition& condition) {
  while (!changed_.wait_for(lock, std::chrono::milliseconds(20), condition)) {
  }
}

void Communicator::wait_for_abort() {
  std::unique_lock lock(mutex_);
  wait(lock, [&] { return abort_->raised(); });
  throw Aborted{};
}

bool Communicator::accept(const std::vector<Call>& calls) {
  if (!connect_now(to_connect(calls))) return false;
  std::unique_lock lock(mutex_);
  accepted_ += static_cast<int64_t>(calls.size());
  if (accepted_ <= settings().after || !settings().injects(FaultKind::call_hang, rank_)) {
    return true;
  }
  wait(lock, [&] { return abort_->raised(); });
  return false;
}

std::string Communicator::choose_network() const {
  if (settings().injects(FaultKind::init_error, rank_)) {
    throw Failure{ccl_system_error, "set-up failed, as HETCOMM_EMULATED_FAULT=init_error asks"};
  }
  std::istringstream list(settings().networks);
  std::string first;
  bool found = false;
  for (std::string name; std::getline(list, name, ',');) {
    if (first.empty()) first = name;
    found |= options_.network.empty() || strcasecmp(name.c_str(), options_.network.c_str()) == 0;
  }
  if (!found) {
    throw Failure{ccl_invalid_usage, "network " + options_.network +
                                         " not found; HETCOMM_EMULATED_NETWORKS lists " +
                                         settings().networks};
  }
  return options_.network.empty() ? first : options_.network;
}

void Communicator::announce(const std::string& network) const {
  std::string port = interface_of(address_) + ":" + to_text(address_) + "<0>";
  if (strcasecmp(network.c_str(), "IB") == 0) {
    std::string list;
    int number = 0;
    for (const std::string& adapter : adapters()) {
      list += "[" + std::to_string(number++) + "]" + adapter + ":1/RoCE ";
    }
    inform("NET/IB : Using " + list + "; OOB " + port);
  } else {
    inform("NET/" + network + " : Using [0]" + port);
  }
  inform("Using network " + network);
}

void Communicator::connect(const Identity& identity) {
  connects_late_ = connects_at_first_use();
  std::memcpy(magic_, identity.magic, sizeof magic_);
  const Meeting early = connects_late_ ? Meeting{} : to_connect_early();
  in_background([this, identity, early] {
    if (settings().injects(FaultKind::init_hang, rank_)) wait_for_abort();
    std::string network = choose_network();
    mesh_ = meet(identity, rank_, size_, device_, Stop{.abort = abort_.get()}, address_);
    announce(network);
    if (early.ticket && !rendezvous(early)) throw Aborted{};
  });
}

int Communicator::state() {
  std::lock_guard lock(mutex_);
  return state_;
}

int Communicator::wait_for_state() {
  std::unique_lock lock(mutex_);
  wait(lock, [&] { return state_ != ccl_in_progress; });
  return state_;
}

void Communicator::require_ready() {
  int now = state();
  if (now == ccl_success) return;
  throw Failure{now == ccl_in_progress ? ccl_invalid_argument : now,
                "the communicator was used before its previous operation had returned ncclSuccess"};
}

Communicator::Prepared Communicator::take_turn(std::vector<Call> calls) {
  std::lock_guard lock(mutex_);
  for (Call& call : calls) {
    if (call.kind != CallKind::message) call.sequence = ++sequence_;
  }
  const Launch launch = launch_of(calls);
  return {[self = shared_from_this(), calls = std::move(calls), ticket = issued_++] {
            self->in_turn(ticket, [&] { self->perform(calls); });
          },
          launch};
}

Launch Communicator::launch_of(const std::vector<Call>& calls) const {
  Launch launch;
  std::memcpy(launch.magic, magic_, sizeof launch.magic);
  launch.rank = static_cast<int16_t>(rank_);
  launch.size = size_;
  for (const Call& call : calls) {
    launch.kind = static_cast<uint16_t>(call.kind);
    launch.sequence = std::max(launch.sequence, call.sequence);
    if (call.count == 0 || size_ > kMostMembers) continue;
    const uint32_t everybody = (uint32_t{1} << size_) - 1;
    const bool rooted = call.kind == CallKind::reduce || call.kind == CallKind::broadcast;
    const bool is_root = rooted && call.peer == rank_;
    if (call.kind == CallKind::message || (call.kind == CallKind::broadcast && !is_root)) {
      launch.awaited |= uint32_t{1} << call.peer;
    } else if (!rooted || (call.kind == CallKind::reduce && is_root)) {
      launch.awaited |= everybody;
    }
  }
  launch.awaited &= ~(uint32_t{1} << rank_ % kMostMembers);
  for (int member = 0; member < std::min(size_, kMostMembers); ++member) {
    launch.members[member] = mesh_->place(member);
  }
  return launch;
}

std::function<void(const std::string&)> Communicator::reporter() {
  return [self = weak_from_this()](const std::string& text) {
    if (const auto held = self.lock()) held->report(ccl_system_error, text);
  };
}

void Communicator::enqueue(Stream& stream, const Prepared& prepared) {
  if (!settings().hostile.order) return stream.enqueue("collective", prepared.operation);
  LaunchOrder::of(device_).enqueue(stream, prepared.launch, abort_, reporter(), prepared.operation);
}

void Communicator::submit(std::vector<Call> calls, std::shared_ptr<Stream> stream) {
  const Meeting connecting = options_.blocking ? Meeting{} : to_connect(calls);
  std::optional<Prepared> now;
  if (stream->capture() == nullptr) now = take_turn(calls);
  auto launch = [self = shared_from_this(), calls = std::move(calls), stream, now] {
    if (now) return self->enqueue(*stream, *now);
    stream->enqueue_each("collective", [self, calls] {
      Prepared prepared = self->take_turn(calls);
      if (!settings().hostile.order) return prepared.operation;
      return LaunchOrder::of(self->device_)
          .in_turn(prepared.launch, self->abort_, self->reporter(), prepared.operation);
    });
  };
  if (options_.blocking) return launch();
  // A thread launches for a non-blocking communicator, as in the vendors' libraries.
  in_background(
      [self = shared_from_this(), connecting, launch = std::move(launch), number = submitted_++] {
        if (!self->connect_now(connecting)) throw Aborted{};
        delay(kLaunches + static_cast<uint64_t>(self->rank_), number);
        launch();
      });
}

Communicator::Meeting Communicator::to_connect(const std::vector<Call>& calls) {
  Meeting connecting;
  if (!settings().hostile.lazy || size_ == 1) return connecting;
  std::lock_guard lock(mutex_);
  std::set<int> peers;
  for (const Call& call : calls) {
    if (call.kind == CallKind::message) {
      if (call.peer != rank_ && connected_peers_.insert(call.peer).second) peers.insert(call.peer);
    } else if (connects_late_ && connected_kinds_.insert(call.kind).second) {
      for (int peer = 0; peer < size_; ++peer) peers.insert(peer);
    }
  }
  peers.erase(rank_);
  return peers.empty() ? connecting : meeting_with(peers);
}

// Set-up connects the members, and hangs if a member connects late.
Communicator::Meeting Communicator::to_connect_early() {
  if (!settings().hostile.lazy || size_ == 1) return {};
  std::lock_guard lock(mutex_);
  std::set<int> peers;
  for (int peer = 0; peer < size_; ++peer) peers.insert(peer);
  peers.erase(rank_);
  return meeting_with(peers);
}

Communicator::Meeting Communicator::meeting_with(const std::set<int>& peers) {
  Meeting connecting{.ticket = issued_++, .peers = {peers.begin(), peers.end()}, .label = {}};
  connecting.label.kind = static_cast<uint16_t>(CallKind::connection);
  return connecting;
}

bool Communicator::connect_now(const Meeting& meeting) {
  if (!meeting.ticket) return true;
  const Hostile& hostile = settings().hostile;
  if (hostile.sync && !Stream::synchronize_device(device_, "a connection", hostile.gates)) {
    throw Failure{ccl_unhandled_runtime_error, "a connection waited for the device too long"};
  }
  const bool connected = rendezvous(meeting);
  if (!connected) {
    std::fprintf(stderr, "hetcomm emulated %s: rank %d: aborted while its first call connects\n",
                 HETCOMM_EMULATED_VENDOR, rank_);
  }
  return connected;
}

bool Communicator::rendezvous(const Meeting& meeting) {
  bool met = false;
  std::exception_ptr wrong;
  in_turn(*meeting.ticket, [&] {
    std::vector<Message> sends, receives;
    char mine = 0;
    std::vector<char> theirs(static_cast<size_t>(size_));
    for (int peer : meeting.peers) {
      sends.push_back({peer, &mine, 1, meeting.label});
      receives.push_back({peer, &theirs[static_cast<size_t>(peer)], 1, meeting.label});
    }
    try {
      mesh_->exchange(sends, receives, Stop{.abort = abort_.get()});
      met = true;
    } catch (const Aborted&) {
    } catch (...) {
      wrong = std::current_exception();
    }
  });
  if (wrong) std::rethrow_exception(wrong);
  return met;
}

void Communicator::wait_a_while() {
  constexpr auto kLatest = std::chrono::milliseconds(300);
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kLatest * (1 + rank_ % 3) / 3, [&] { return abort_->raised(); });
}

void Communicator::in_turn(uint64_t ticket, const std::function<void()>& work) {
  std::unique_lock lock(mutex_);
  wait(lock, [&] { return turn_ == ticket || abort_->raised(); });
  if (abort_->raised()) return;
  ++busy_;
  lock.unlock();
  work();
  lock.lock();
  --busy_;
  ++turn_;
  changed_.notify_all();
}

void Communicator::perform(const std::vector<Call>& calls) {
  try {
    try {
      bool due = performed_ + static_cast<int64_t>(calls.size()) > settings().after;
      performed_ += static_cast<int64_t>(calls.size());
      if (due && settings().injects(FaultKind::hang, rank_)) wait_for_abort();
      if (due && settings().injects(FaultKind::async_error, rank_)) {
        throw Failure{ccl_remote_error, "failed, as HETCOMM_EMULATED_FAULT=async_error asks"};
      }
      run_calls(calls, *mesh_, Stop{.abort = abort_.get()});
    } catch (const Failure& failure) {
      if (settings().hostile.late) wait_a_while();
      report(failure.result, failure.text);
      wait_for_abort();  // like a kernel that waits for a peer
    }
  } catch (const Aborted&) {
  }
}

void Communicator::finalize() {
  Meeting ending{.label = {.kind = static_cast<uint16_t>(CallKind::end)}};
  {
    std::lock_guard lock(mutex_);
    ending.ticket = issued_++;
  }
  for (int peer = 0; settings().hostile.ends && peer < size_; ++peer) {
    if (peer != rank_) ending.peers.push_back(peer);
  }
  in_background([this, ending] { rendezvous(ending); });
}

void Communicator::wait_submitted() {
  std::unique_lock lock(mutex_);
  wait(lock,
       [&] { return turn_ == issued_ || (state_ != ccl_success && state_ != ccl_in_progress); });
}

void Communicator::end(bool abort) {
  std::unique_lock lock(mutex_);
  if (abort) abort_->raise();
  changed_.notify_all();
  wait(lock, [&] { return busy_ == 0; });
  mesh_.reset();
  lock.unlock();
  forget();
}

}  // namespace hetcomm::emulated
