#include <algorithm>
#include <cstdio>
#include <map>

#include "base/text.h"
#include "health/group_state.h"

namespace hetcomm {
namespace {

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (char c : text) {
    char escaped[8];
    if (static_cast<unsigned char>(c) < 0x20) {
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      result += escaped;
    } else {
      if (c == '"' || c == '\\') result += '\\';
      result += c;
    }
  }
  return result + "\"";
}

// Events of one leg that overlap take several threads of the viewer, because it draws nested
// events only.
class Writer {
 public:
  void process(int id, const std::string& name) {
    process_ = id;
    rows_.clear();
    metadata("process_name", 0, name);
  }

  void event(const std::string& leg, const std::string& name, int64_t begin, int64_t end,
             const std::string& arguments) {
    if (begin < 0) return;
    end = std::max(end, begin);
    const auto microseconds = [](int64_t ns) {
      return format_fixed(static_cast<double>(ns) / 1e3, 3);
    };
    add("{\"ph\":\"X\",\"pid\":" + std::to_string(process_) +
        ",\"tid\":" + std::to_string(row(leg, begin, end)) + ",\"name\":" + quoted(name) +
        ",\"ts\":" + microseconds(begin) + ",\"dur\":" + microseconds(end - begin) + ",\"args\":{" +
        arguments + "}}");
  }

  std::string take() {
    return "{\"traceEvents\":[\n" + events_ + "\n],\"displayTimeUnit\":\"ms\"}\n";
  }

 private:
  struct Row {
    std::string leg;
    int64_t free;  // from then on
  };

  int row(const std::string& leg, int64_t begin, int64_t end) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].leg != leg || rows_[i].free > begin) continue;
      rows_[i].free = end;
      return static_cast<int>(i);
    }
    rows_.push_back({leg, end});
    metadata("thread_name", static_cast<int>(rows_.size()) - 1, leg);
    return static_cast<int>(rows_.size()) - 1;
  }

  void metadata(const char* what, int thread, const std::string& name) {
    add("{\"ph\":\"M\",\"pid\":" + std::to_string(process_) + ",\"tid\":" + std::to_string(thread) +
        ",\"name\":\"" + what + "\",\"args\":{\"name\":" + quoted(name) + "}}");
  }

  void add(const std::string& event) { events_ += (events_.empty() ? "" : ",\n") + event; }

  int process_ = 0;
  std::vector<Row> rows_;
  std::string events_;
};

std::string leg_of(const RecordedStep& step) {
  if (step.peer >= 0) {
    return (step.kind->sends ? "send to rank " : "recv from rank ") + std::to_string(step.peer);
  }
  return step.kind->performer == Performer::island ? "island" : "own steps";
}

void write(Writer& writer, const GroupState::Answer& answer, int64_t origin) {
  const auto at = [&](int64_t time) { return time < 0 ? -1 : time + answer.offset - origin; };
  const int64_t now = at(answer.state.now);
  const auto until = [&](int64_t end) { return end < 0 ? now : at(end); };
  for (const RecordedOperation& one : answer.state.operations) {
    const char* outcome = one.ended < 0 ? "under way" : name(one.code);
    writer.event(
        "operations", describe(one.call, one.user_tag), at(one.submitted), until(one.ended),
        "\"outcome\":\"" + std::string(outcome) + "\",\"algorithm\":" + quoted(one.algorithm));
    if (one.message() && one.step_count == 1) continue;
    for (const RecordedStep& step : one.steps) {
      writer.event(leg_of(step),
                   std::string(step.kind->name) + " #" + std::to_string(one.call.sequence) + "." +
                       std::to_string(step.index),
                   at(step.begin), step.end < 0 && one.failed() ? at(one.ended) : until(step.end),
                   "\"bytes\":" + std::to_string(step.bytes) +
                       ",\"over\":" + (step.end < 0 ? "false" : "true"));
    }
  }
}

int64_t first_time(const std::vector<GroupState>& groups) {
  int64_t first = INT64_MAX;
  for (const GroupState& group : groups) {
    for (const auto& answer : group.answers) {
      if (!answer) continue;
      for (const RecordedOperation& one : answer->state.operations) {
        if (one.submitted >= 0) first = std::min(first, one.submitted + answer->offset);
      }
    }
  }
  return first == INT64_MAX ? 0 : first;
}

}  // namespace

std::string chrome_trace(const std::vector<GroupState>& groups) {
  const int64_t origin = first_time(groups);
  Writer writer;
  int process = 0;
  for (const GroupState& group : groups) {
    for (int rank = 0; rank < group.size(); ++rank) {
      const auto& answer = group.answers[rank];
      writer.process(process++, group.name(rank) + " of " + group.group +
                                    (answer ? "" : ": " + group.silent[rank]));
      if (answer) write(writer, *answer, origin);
    }
  }
  return writer.take();
}

}  // namespace hetcomm
