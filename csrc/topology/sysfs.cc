#include "topology/sysfs.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/config.h"
#include "base/text.h"

namespace hetcomm {

namespace files = std::filesystem;

std::string read_attribute(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (!line.empty() && is_space(line.back())) line.pop_back();
  // Texts go into facts and messages, so they have no bytes of another kind.
  return in_ascii(std::move(line));
}

double read_number(const std::string& path, double otherwise) {
  return leading_number(read_attribute(path)).value_or(otherwise);
}

bool exists(const std::string& path) {
  std::error_code error;
  return files::exists(path, error);
}

std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (files::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end(), natural_less);
  return names;
}

std::string link_name(const std::string& path) {
  std::error_code error;
  return files::read_symlink(path, error).filename().string();
}

bool natural_less(const std::string& a, const std::string& b) {
  auto digits_end = [&](const std::string& text, size_t at) {
    while (at < text.size() && is_digit(text[at])) ++at;
    return at;
  };
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      size_t i_end = digits_end(a, i), j_end = digits_end(b, j);
      while (i < i_end && a[i] == '0') ++i;
      while (j < j_end && b[j] == '0') ++j;
      if (i_end - i != j_end - j) return i_end - i < j_end - j;
      int order = a.compare(i, i_end - i, b, j, j_end - j);
      if (order != 0) return order < 0;
      i = i_end, j = j_end;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
    }
  }
  if (i < a.size() || j < b.size()) return i == a.size();
  return a < b;  // they differ in leading zeros only
}

}  // namespace hetcomm
