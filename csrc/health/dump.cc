#include "health/dump.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>

#include "base/config.h"
#include "base/descriptor.h"
#include "base/file_thread.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/system_text.h"
#include "base/text.h"
#include "health/health.h"

namespace hetcomm {
namespace {

struct Groups {
  std::mutex mutex;
  std::vector<std::weak_ptr<Health>> all;
};

// "hetcomm-GROUP-TIME-...". A "-" replaces each other character than letters and digits.
std::string file_name(const GroupState& state) {
  std::string name = "hetcomm-";
  for (char c : state.group.substr(0, 40)) name += is_letter_or_digit(c) ? c : '-';
  std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "-%Y%m%dT%H%M%SZ", &utc);
  return name + text + "-rank" + std::to_string(state.asker) + "-" + std::to_string(getpid());
}

}  // namespace

void write_new_file(const std::string& path, const std::string& text, unsigned permissions) {
  const Descriptor file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, permissions));
  size_t written = 0;
  while (file >= 0 && written < text.size()) {
    const ssize_t some = write(file, text.data() + written, text.size() - written);
    if (some < 0 && errno == EINTR) continue;
    if (some <= 0) break;
    written += static_cast<size_t>(some);
  }
  if (file >= 0 && written == text.size()) return;
  throw Error(Code::transport, system_text("cannot write \"", path, "\": ", kReason));
}

void add_to_dumps(const std::shared_ptr<Health>& group) {
  auto& groups = of_process<Groups>();
  std::lock_guard lock(groups.mutex);
  std::erase_if(groups.all, [](const auto& one) { return one.expired(); });
  groups.all.push_back(group);
}

std::vector<std::shared_ptr<Health>> live_groups() {
  std::vector<std::shared_ptr<Health>> live;
  auto& groups = of_process<Groups>();
  std::unique_lock lock(groups.mutex);
  for (const auto& one : groups.all) {
    if (auto group = one.lock()) live.push_back(std::move(group));
  }
  lock.unlock();
  std::erase_if(live, [](const auto& group) { return !group->member(); });
  return live;
}

std::shared_ptr<Dump> Dump::begin(const std::string& why, bool every_step) {
  const auto live = live_groups();
  auto dump = std::make_shared<Dump>();
  dump->awaited_ = live.size();
  for (const auto& group : live) {
    const auto detail = every_step ? Inquiry::Detail::steps : Inquiry::Detail::operations;
    group->inquire(why, {.detail = detail}, [dump](const GroupState& state) {
      std::lock_guard lock(dump->mutex_);
      dump->groups_.push_back(state);
      --dump->awaited_;
      dump->changed_.notify_all();
    });
  }
  return dump;
}

bool Dump::complete() const {
  std::lock_guard lock(mutex_);
  return awaited_ == 0;
}

bool Dump::wait(std::chrono::nanoseconds time) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [this] { return awaited_ == 0; });
}

std::string Dump::text() const {
  std::lock_guard lock(mutex_);
  std::string text;
  for (const GroupState& group : groups_) text += diagnosis(group);
  if (groups_.empty()) text = "this process has no group of several ranks\n";
  return text;
}

std::string Dump::trace() const {
  std::lock_guard lock(mutex_);
  return chrome_trace(groups_);
}

bool dumps_to_files() { return setting("HETCOMM_DUMP").has_value(); }

namespace {

// The time for a dump's files. Then the log has the state of the ranks instead.
constexpr auto kFileBound = std::chrono::seconds(3);
constexpr size_t kMostDumps = 8;  // that are not written yet

struct DumpFiles {
  struct Unwritten {
    std::shared_ptr<std::atomic<bool>> over = std::make_shared<std::atomic<bool>>(false);
    std::string path, text;
    int rank = -1;
    Deadline deadline{kFileBound};
  };
  FileThread thread;
  std::mutex mutex;  // guards the rest
  std::vector<Unwritten> unwritten;
  int dropped = 0;
};

void write_dump(const std::string& path, const GroupState& state, const std::string& text,
                int rank) try {
  write_new_file(path + ".txt", text, 0600);
  write_new_file(path + ".trace.json", chrome_trace({state}), 0600);
  log(LogLevel::warning,
      "the state of all ranks of group \"" + state.group + "\" is in " + path +
          ".txt, their last steps are in " + path + ".trace.json",
      rank);
} catch (const Error& error) {
  log(LogLevel::warning, error.what() + std::string("; correct HETCOMM_DUMP\n") + text, rank);
}

}  // namespace

void tell_of_failure(const GroupState& state, int rank) {
  const auto folder = setting("HETCOMM_DUMP");
  if (!folder) return log(LogLevel::warning, diagnosis(state), rank);
  auto& files = of_process<DumpFiles>();
  std::unique_lock lock(files.mutex);
  DumpFiles::Unwritten dump{
      .path = *folder + "/" + file_name(state), .text = diagnosis(state), .rank = rank};
  const auto task = [=, over = dump.over] {
    write_dump(dump.path, state, dump.text, rank);
    *over = true;
  };
  if (files.thread.post(task, kMostDumps)) return files.unwritten.push_back(std::move(dump));
  const int dropped = ++files.dropped;
  lock.unlock();
  log(LogLevel::warning,
      "HETCOMM_DUMP: the file system still stands still; dumps left out: " +
          std::to_string(dropped) + "\n" + dump.text,
      rank);
}

void look_at_dumps() {
  std::vector<DumpFiles::Unwritten> late;
  auto& files = of_process<DumpFiles>();
  {
    std::lock_guard lock(files.mutex);
    std::erase_if(files.unwritten, [&](DumpFiles::Unwritten& one) {
      if (!*one.over && one.deadline.passed()) late.push_back(std::move(one));
      return !one.over || *one.over;
    });
  }
  for (const auto& one : late) {
    log(LogLevel::warning,
        "HETCOMM_DUMP: \"" + one.path + ".txt\" is not written after " +
            format_seconds(kFileBound) +
            ": its file system stands still; mend it, or name another "
            "folder\n" +
            one.text,
        one.rank);
  }
}

void await_dumps() {
  auto& files = of_process<DumpFiles>();
  const auto waits = [&] {
    look_at_dumps();
    std::lock_guard lock(files.mutex);
    return !files.unwritten.empty();
  };
  while (waits()) files.thread.wait(std::chrono::milliseconds(100));
}

}  // namespace hetcomm
