#include "health/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <map>

#include "base/config.h"
#include "base/file_thread.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/system_text.h"
#include "base/text.h"
#include "health/dump.h"
#include "health/health.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

constexpr auto kPeriod = 10s;
constexpr auto kExitBound = 1s;  // for the file's end

std::string label(const std::string& text) {
  std::string result;
  for (char c : text) {
    if (c == '\n') {
      result += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

// Groups of one name count together, because Prometheus knows each series once.
std::map<std::pair<std::string, int>, GroupTotals> totals_by_name() {
  std::map<std::pair<std::string, int>, GroupTotals> sums;
  for (const auto& group : live_groups()) {
    const GroupTotals one = group->totals();
    GroupTotals& sum = sums[{one.group, one.rank}];
    for (size_t i = 0; i < kCollectives; ++i) {
      sum.collectives[i].operations += one.collectives[i].operations;
      sum.collectives[i].errors += one.collectives[i].errors;
      sum.collectives[i].bytes += one.collectives[i].bytes;
      sum.collectives[i].ticks += one.collectives[i].ticks;
    }
    sum.stalls += one.stalls;
    sum.failed |= one.failed;
    sum.compared += one.compared;
    if (sum.late.size() < one.late.size()) sum.late.resize(one.late.size());
    for (size_t rank = 0; rank < one.late.size(); ++rank) sum.late[rank] += one.late[rank];
  }
  return sums;
}

class Text {
 public:
  void begin(const char* name, const char* type, const char* help) {
    name_ = name;
    text_ += std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  }
  void add(const std::string& labels, const std::string& value) {
    text_ += name_ + "{" + labels + "} " + value + "\n";
  }
  std::string take() { return std::move(text_); }

 private:
  std::string name_, text_;
};

std::string of_ns(uint64_t ns) { return format_fixed(static_cast<double>(ns) / 1e9, 9); }

}  // namespace

std::string metrics() {
  const auto sums = totals_by_name();
  const auto labels = [](const auto& key) {
    return "group=\"" + label(key.first) + "\",rank=\"" + std::to_string(key.second) + "\"";
  };
  Text text;
  const auto by_collective = [&](const char* name, const char* help, const auto& value) {
    text.begin(name, "counter", help);
    for (const auto& [key, sum] : sums) {
      for (size_t i = 0; i < kCollectives; ++i) {
        if (sum.collectives[i].operations == 0) continue;
        text.add(labels(key) + ",collective=\"" + hetcomm::name(static_cast<Collective>(i)) + "\"",
                 value(sum.collectives[i]));
      }
    }
  };
  by_collective("hetcomm_operations_total", "Operations that ended.",
                [](const OperationTotals& one) { return std::to_string(one.operations); });
  by_collective("hetcomm_errors_total", "Operations that failed.",
                [](const OperationTotals& one) { return std::to_string(one.errors); });
  by_collective("hetcomm_bytes_total", "Bytes of the calls that succeeded, by their count.",
                [](const OperationTotals& one) { return std::to_string(one.bytes); });
  by_collective("hetcomm_seconds_total", "Seconds from calls to their ends, overlaps included.",
                [](const OperationTotals& one) { return of_ns(one.ticks); });
  const auto by_group = [&](const char* name, const char* type, const char* help,
                            const auto& value) {
    text.begin(name, type, help);
    for (const auto& [key, sum] : sums) text.add(labels(key), std::to_string(value(sum)));
  };
  by_group("hetcomm_stalls_total", "counter", "Stalled collectives that this rank noted.",
           [](const GroupTotals& sum) { return sum.stalls; });
  by_group("hetcomm_failed", "gauge", "1 once the group has failed.",
           [](const GroupTotals& sum) { return sum.failed ? 1 : 0; });
  text.begin("hetcomm_compared_calls_total", "counter",
             "Calls in which rank 0 compared the arrival of all ranks.");
  for (const auto& [key, sum] : sums) {
    if (!sum.late.empty()) text.add(labels(key), std::to_string(sum.compared));
  }
  text.begin("hetcomm_late_arrivals_total", "counter",
             "Compared calls to which the rank `late` came last.");
  for (const auto& [key, sum] : sums) {
    for (size_t rank = 0; rank < sum.late.size(); ++rank) {
      if (sum.late[rank] == 0) continue;
      text.add(labels(key) + ",late=\"" + std::to_string(rank) + "\"",
               std::to_string(sum.late[rank]));
    }
  }
  return text.take();
}

namespace {

class MetricsFile : public Monitor {
 public:
  explicit MetricsFile(const std::string& folder)
      : path_(folder + "/hetcomm-" + std::to_string(getpid()) + ".prom") {}

  void poll() override {
    if (Clock::now() < next_) return;
    next_ = Clock::now() + kPeriod;
    if (!files_.wait(0ns)) {
      if (left_out_++ > 0) return;
      return log(LogLevel::warning, "HETCOMM_METRICS: \"" + path_ + "\" is not written after " +
                                        format_seconds(kPeriod) +
                                        ": its file system stands still; mend it, or name another "
                                        "folder");
    }
    if (const int before = std::exchange(left_out_, 0)) {
      log(LogLevel::warning, "HETCOMM_METRICS: the file system of \"" + path_ +
                                 "\" goes on; files left out: " + std::to_string(before));
    }
    files_.post([path = path_, text = metrics(), warned = warned_] { write(path, text, *warned); },
                1);
  }

  void failed(const Status& status) override { warn_once(status, *warned_); }

  void remove() {
    if (left_out_ > 0) return;  // the file system stands still
    files_.post([path = path_] { unlink(path.c_str()); }, 2);
    files_.wait(kExitBound);
  }

 private:
  static void warn_once(const Status& status, std::atomic<bool>& warned) {
    if (!warned.exchange(true)) {
      log(LogLevel::warning, status.text() + "; correct HETCOMM_METRICS");
    }
  }
  static void write(const std::string& path, const std::string& text,
                    std::atomic<bool>& warned) try {
    const std::string incomplete = path + ".new";
    unlink(incomplete.c_str());
    write_new_file(incomplete, text, 0644);
    if (rename(incomplete.c_str(), path.c_str()) == 0) return;
    throw Error(Code::transport, system_text("cannot rename \"", incomplete, "\": ", kReason));
  } catch (const Error& error) {
    warn_once(error.status(), warned);
  }

  const std::string path_;
  FileThread files_;
  Clock::time_point next_{};
  int left_out_ = 0;
  const std::shared_ptr<std::atomic<bool>> warned_ = std::make_shared<std::atomic<bool>>(false);
};

struct Kept {
  std::mutex mutex;
  std::shared_ptr<MetricsFile> file;
};

}  // namespace

void keep_metrics_file(Executor& executor) {
  const auto folder = setting("HETCOMM_METRICS");
  if (!folder) return;
  auto file = std::make_shared<MetricsFile>(*folder);
  executor.add(file);
  auto& kept = of_process<Kept>();
  std::lock_guard lock(kept.mutex);
  kept.file = std::move(file);
}

void remove_metrics_file() {
  auto& kept = of_process<Kept>();
  std::lock_guard lock(kept.mutex);
  if (kept.file) kept.file->remove();
}

}  // namespace hetcomm
