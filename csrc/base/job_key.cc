#include "base/job_key.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/config.h"
#include "base/descriptor.h"
#include "base/status.h"
#include "base/system_text.h"

namespace hetcomm {
namespace {

const char* const kVariable = "HETCOMM_JOB_KEY";
const char* const kFileVariable = "HETCOMM_JOB_KEY_FILE";
const char* const kRemedy = "make one with hetcomm key FILE";
constexpr size_t kLeastBytes = 16, kMostBytes = 4096;

[[noreturn]] void refuse(const std::string& source, const std::string& text) {
  throw Error(Code::invalid_argument, source + ": " + text);
}

// Group and others have no permission; a group may read a file of root's, as volumes of secrets
// have it.
void check_permissions(const std::string& source, const struct stat& found) {
  if (!S_ISREG(found.st_mode)) refuse(source, "expected a file; got something else");
  const bool mine = found.st_uid == geteuid(), of_root = found.st_uid == 0;
  if (!mine && !of_root) {
    refuse(source, "expected a file of this user or of root; got one of user " +
                       std::to_string(found.st_uid) + "; copy it with chmod 600");
  }
  const mode_t refused = of_root && !mine ? S_IWGRP | S_IRWXO : S_IRWXG | S_IRWXO;
  if ((found.st_mode & refused) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%o", found.st_mode & 0777);
    refuse(source, std::string("expected a file that no other user may read; got mode ") + mode +
                       "; chmod 600 it, and make a new key if other users may have read it");
  }
}

std::string read_file(const std::string& path) {
  const std::string source = std::string(kFileVariable) + "=" + path;
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file < 0) refuse(source, system_text(kReason, "; ", kRemedy));
  struct stat found{};
  if (fstat(file, &found) != 0) refuse(source, system_text(kReason));
  check_permissions(source, found);
  std::string text(kMostBytes + 1, '\0');
  size_t length = 0;
  while (length < text.size()) {
    const ssize_t got = read(file, text.data() + length, text.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(source, system_text(kReason));
    if (got == 0) break;
    length += static_cast<size_t>(got);
  }
  text.resize(length);
  return text;
}

}  // namespace

std::string job_key() {
  const auto given = setting(kVariable), path = setting(kFileVariable);
  if (!given && !path) return "";
  if (given && path) {
    refuse(kVariable, std::string("expected either this or ") + kFileVariable +
                          ", got both; unset one of the two");
  }
  std::string key = given ? *given : read_file(*path);
  const std::string source = given ? kVariable : std::string(kFileVariable) + "=" + *path;
  key.resize(key.find_last_not_of(" \t\r\n") + 1);  // an editor's newline
  if (key.size() < kLeastBytes || key.size() > kMostBytes) {
    refuse(source, "expected a key of " + std::to_string(kLeastBytes) + " to " +
                       std::to_string(kMostBytes) + " bytes, got " +
                       (key.size() > kMostBytes ? "more" : std::to_string(key.size())) + "; " +
                       kRemedy);
  }
  return key;
}

}  // namespace hetcomm
