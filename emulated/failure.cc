#include "emulated/failure.h"

#include <strings.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace hetcomm::emulated {

namespace {

std::mutex mutex;

std::string& latest() {
  static auto* text = new std::string;
  return *text;
}

enum Level { silent, warnings, everything };

Level level() {  // read once, as the vendors' libraries do
  static const Level read = [] {
    const char* text = std::getenv("NCCL_DEBUG");
    if (text == nullptr) return silent;
    if (strcasecmp(text, "INFO") == 0 || strcasecmp(text, "TRACE") == 0) return everything;
    return strcasecmp(text, "WARN") == 0 ? warnings : silent;
  }();
  return read;
}

std::string host() {
  char name[65] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

// NCCL_DEBUG_FILE with %h and %p replaced; standard output unless set.
FILE* debug_file() {
  static FILE* file = [] {
    const char* pattern = std::getenv("NCCL_DEBUG_FILE");
    if (pattern == nullptr || *pattern == '\0') return stdout;
    std::string path = pattern;
    auto replace = [&](const std::string& what, const std::string& by) {
      if (size_t at = path.find(what); at != std::string::npos) path.replace(at, what.size(), by);
    };
    replace("%h", host());
    replace("%p", std::to_string(getpid()));
    FILE* opened = std::fopen(path.c_str(), "w");
    return opened == nullptr ? stdout : opened;
  }();
  return file;
}

void print(const char* level, const std::string& text) {
  std::fprintf(debug_file(), "%s:%d:%d [0] %s%s\n", host().c_str(), getpid(), gettid(), level,
               text.c_str());
  std::fflush(debug_file());
}

}  // namespace

void note(const std::string& text) {
  if (level() >= warnings) print("NCCL WARN ", text);
  std::lock_guard lock(mutex);
  latest() = text;
}

const char* latest_note() {
  static thread_local std::string copy;  // valid until this thread's next call
  std::lock_guard lock(mutex);
  copy = latest();
  return copy.c_str();
}

int fail(int result, const std::string& text) {
  note(text);
  return result;
}

void inform(const std::string& text) {
  if (level() == everything) print("NCCL INFO ", text);
}

}  // namespace hetcomm::emulated
