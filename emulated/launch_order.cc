#include "emulated/launch_order.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "emulated/calls.h"
#include "emulated/settings.h"

namespace hetcomm::emulated {

namespace {

constexpr size_t kListed = 6;    // launches of a device that other processes see
constexpr uint32_t kEnded = 64;  // ended ones
constexpr auto kLook = std::chrono::milliseconds(100);
constexpr auto kAbortLook = std::chrono::milliseconds(20);
constexpr int kReads = 100;  // of a page that its writer is changing

// What identifies the calls of a launch on all members.
struct Key {
  uint8_t magic[16];
  uint32_t sequence;

  static Key of(const Launch& launch) {
    Key key{};
    std::memcpy(key.magic, launch.magic, sizeof key.magic);
    key.sequence = launch.sequence;
    return key;
  }
  bool operator==(const Key& other) const {
    return std::memcmp(magic, other.magic, sizeof magic) == 0 && sequence == other.sequence;
  }
};

// The launches of one device, in the file of its process.
struct Page {
  std::atomic<uint64_t> version;  // odd while it is written
  uint32_t waiting;               // launches that have not ended, of which the first are in `first`
  uint32_t ended;                 // so far, of which the last ones are in `last`
  Launch first[kListed];
  Key last[kEnded];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

struct Copy {
  std::vector<Launch> first;
  uint32_t waiting = 0;
  std::vector<Key> last;

  bool has_ended(const Key& key) const {
    return std::find(last.begin(), last.end(), key) != last.end();
  }
};

struct File {
  int descriptor = -1;
  Page* pages = nullptr;  // by device
};

constexpr size_t kFileBytes = sizeof(Page) * kMostDevices;

// Of this process. Never closed.
const File& own_file() {
  static const File* file = [] {
    auto* made = new File;
    const int descriptor = memfd_create("hetcomm-emulated-launches", MFD_CLOEXEC);
    if (descriptor < 0 || ftruncate(descriptor, kFileBytes) != 0) return made;
    void* memory = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) return made;
    *made = {descriptor, static_cast<Page*>(memory)};
    return made;
  }();
  return *file;
}

// The file of another process, or of this one; null where it cannot be read. Used by one thread.
const Page* pages_at(const Place& place) {
  static auto* known = new std::map<std::pair<int32_t, int32_t>, const Page*>;
  const auto [found, added] = known->try_emplace({place.process, place.file}, nullptr);
  if (!added || place.file < 0) return found->second;
  const std::string path =
      "/proc/" + std::to_string(place.process) + "/fd/" + std::to_string(place.file);
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  void* memory = mmap(nullptr, kFileBytes, PROT_READ, MAP_SHARED, descriptor, 0);
  close(descriptor);
  if (memory != MAP_FAILED) found->second = static_cast<const Page*>(memory);
  return found->second;
}

Copy read(const Place& place) {
  const Page* pages = place.device < 0 ? nullptr : pages_at(place);
  if (pages == nullptr) return {};
  const Page& page = pages[place.device];
  for (int reads = 0; reads < kReads; ++reads) {
    const uint64_t before = page.version.load(std::memory_order_acquire);
    Copy copy;
    copy.waiting = page.waiting;
    copy.first.assign(page.first, page.first + std::min<size_t>(copy.waiting, kListed));
    copy.last.assign(page.last, page.last + std::min(page.ended, kEnded));
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && page.version.load(std::memory_order_relaxed) == before) return copy;
    std::this_thread::yield();
  }
  return {};
}

std::string describe(const Launch& launch) {
  char communicator[16];
  std::snprintf(communicator, sizeof communicator, "%02x%02x%02x", launch.magic[0], launch.magic[1],
                launch.magic[2]);
  return call_name(launch.kind) +
         (launch.sequence > 0 ? " #" + std::to_string(launch.sequence) : "") + " of communicator " +
         communicator + " as rank " + std::to_string(launch.rank) + " of " +
         std::to_string(launch.size);
}

std::string describe(const Place& place, const Copy& copy) {
  std::string text = "\n  device " + std::to_string(place.device) + " of process " +
                     std::to_string(place.process) + ": ";
  for (size_t i = 0; i < copy.first.size(); ++i) {
    text += (i == 0 ? "" : ", then ") + describe(copy.first[i]);
  }
  return text + (copy.waiting > copy.first.size() ? ", ..." : "");
}

bool same(const Place& one, const Place& other) {
  return one.process == other.process && one.file == other.file && one.device == other.device;
}

// Follows from each device to the devices that its call under way waits for, because they are at a
// call of another communicator. Returns the devices of a circle with their launches; empty if there
// is none.
class Search {
 public:
  std::vector<std::pair<Place, Copy>> circle_from(const Place& place) {
    visit(place);
    return circle_;
  }

 private:
  bool visit(const Place& place) {
    const auto on_path = std::find_if(path_.begin(), path_.end(),
                                      [&](const auto& each) { return same(each.first, place); });
    if (on_path != path_.end()) {
      circle_.assign(on_path, path_.end());
      return true;
    }
    if (std::any_of(seen_.begin(), seen_.end(),
                    [&](const Place& each) { return same(each, place); })) {
      return false;
    }
    seen_.push_back(place);
    path_.emplace_back(place, read(place));
    const Copy copy = path_.back().second;
    for (int member = 0; !copy.first.empty() && member < kMostMembers; ++member) {
      const Launch& launch = copy.first[0];
      if ((launch.awaited >> member & 1) == 0) continue;
      const Copy theirs = read(launch.members[member]);
      if (theirs.first.empty() || theirs.has_ended(Key::of(launch))) continue;
      if (Key::of(theirs.first[0]) == Key::of(launch)) continue;
      if (visit(launch.members[member])) return true;
    }
    path_.pop_back();
    return false;
  }

  std::vector<std::pair<Place, Copy>> path_, circle_;
  std::vector<Place> seen_;
};

}  // namespace

Place place_of(int device) {
  return settings().hostile.order ? Place{getpid(), own_file().descriptor, device} : Place{};
}

class LaunchOrder::Turn {
 public:
  Turn(LaunchOrder& order, uint64_t ticket) : order_(order), ticket_(ticket) {}
  ~Turn() { order_.end(ticket_); }
  Turn(const Turn&) = delete;

  bool await(const Abort& abort) { return order_.await(ticket_, abort); }

 private:
  LaunchOrder& order_;
  const uint64_t ticket_;
};

// The thread that looks after all devices of this process.
class LaunchWatch {
 public:
  static LaunchWatch& process() {
    static auto* watch = new LaunchWatch;
    return *watch;
  }

  LaunchOrder& order_of(int device) {
    std::lock_guard lock(mutex_);
    std::unique_ptr<LaunchOrder>& order = orders_[device];
    if (order == nullptr) order.reset(new LaunchOrder(device));
    if (!running_) std::thread([this] { run(); }).detach();
    running_ = true;
    return *order;
  }

 private:
  void run() {
    pthread_setname_np(pthread_self(), "emulated order");
    while (true) {
      std::this_thread::sleep_for(kLook);
      std::vector<LaunchOrder*> orders;
      {
        std::lock_guard lock(mutex_);
        for (const auto& [device, order] : orders_) orders.push_back(order.get());
      }
      for (LaunchOrder* order : orders) look(*order);
    }
  }

  static void look(LaunchOrder& order) {
    const auto report = order.overdue(LaunchOrder::Clock::now());
    if (!report) return;
    const auto circle = Search().circle_from(place_of(order.device_));
    if (circle.empty()) return;
    std::string text =
        "calls of several communicators wait for each other without end, because "
        "devices launched them in different orders:";
    for (const auto& [place, copy] : circle) text += describe(place, copy);
    {
      std::lock_guard lock(order.mutex_);
      order.told_ = true;
    }
    std::fprintf(stderr, "hetcomm emulated %s: %s\n", HETCOMM_EMULATED_VENDOR, text.c_str());
    report(text);
  }

  std::mutex mutex_;
  std::map<int, std::unique_ptr<LaunchOrder>> orders_;
  bool running_ = false;
};

LaunchOrder& LaunchOrder::of(int device) { return LaunchWatch::process().order_of(device); }

void LaunchOrder::enqueue(Stream& stream, const Launch& launch, std::shared_ptr<Abort> abort,
                          Report report, Operation operation) {
  std::lock_guard lock(launching_);
  stream.enqueue("collective",
                 add(launch, std::move(abort), std::move(report), std::move(operation)));
}

Operation LaunchOrder::in_turn(const Launch& launch, std::shared_ptr<Abort> abort, Report report,
                               Operation operation) {
  std::lock_guard lock(launching_);
  return add(launch, std::move(abort), std::move(report), std::move(operation));
}

Operation LaunchOrder::add(const Launch& launch, std::shared_ptr<Abort> abort, Report report,
                           Operation operation) {
  std::lock_guard lock(mutex_);
  const uint64_t ticket = tickets_++;
  entries_.push_back({ticket, launch, std::move(report)});
  if (entries_.size() == 1) began_ = Clock::now();
  publish();
  // The turn ends with the last copy of the operation, also if a fault drops the operation.
  return [turn = std::make_shared<Turn>(*this, ticket), abort = std::move(abort),
          operation = std::move(operation)]() mutable {
    if (turn->await(*abort)) operation();
    turn = nullptr;
  };
}

bool LaunchOrder::await(uint64_t ticket, const Abort& abort) {
  std::unique_lock lock(mutex_);
  const auto first = [&] { return entries_.front().ticket == ticket; };
  while (!changed_.wait_for(lock, kAbortLook, first)) {
    if (abort.raised()) return false;
  }
  return true;
}

void LaunchOrder::end(uint64_t ticket) {
  std::lock_guard lock(mutex_);
  const bool first = entries_.front().ticket == ticket;
  std::erase_if(entries_, [&](const Entry& entry) {
    if (entry.ticket != ticket) return false;
    if (Page* pages = own_file().pages) {
      Page& page = pages[device_];
      page.version.fetch_add(1, std::memory_order_acq_rel);
      page.last[page.ended++ % kEnded] = Key::of(entry.launch);
      page.version.fetch_add(1, std::memory_order_release);
    }
    return true;
  });
  if (first) {
    began_ = Clock::now();
    told_ = false;
  }
  publish();
  changed_.notify_all();
}

// Under mutex_.
void LaunchOrder::publish() {
  if (own_file().pages == nullptr) return;
  Page& page = own_file().pages[device_];
  page.version.fetch_add(1, std::memory_order_acq_rel);
  page.waiting = static_cast<uint32_t>(entries_.size());
  for (size_t i = 0; i < std::min(entries_.size(), kListed); ++i) {
    page.first[i] = entries_[i].launch;
  }
  page.version.fetch_add(1, std::memory_order_release);
}

LaunchOrder::Report LaunchOrder::overdue(Clock::time_point now) {
  std::lock_guard lock(mutex_);
  const bool late = !entries_.empty() && !told_ && now - began_ >= settings().hostile.bound;
  return late ? entries_.front().report : nullptr;
}

}  // namespace hetcomm::emulated
