#include "plan/table.h"

#include "base/config.h"
#include "base/status.h"

namespace hetcomm {
namespace {

constexpr int64_t kInfinity = INT64_MAX;

// Reads one table from left to right. Every error names its column.
class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  bool done() const { return at_ >= text_.size(); }
  bool skip(char wanted) {
    if (done() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted, const std::string& where) {
    if (!skip(wanted)) fail(std::string("\"") + wanted + "\" " + where, at_, rest());
  }
  std::string word() {
    size_t end = text_.find_first_of(":-=,;", at_);
    std::string found = text_.substr(at_, end == std::string::npos ? end : end - at_);
    at_ += found.size();
    return found;
  }
  Collective collective() {
    const size_t begin = at_;
    const std::string found = word();
    try {
      return collective_from_name(found);
    } catch (const Error&) {
      fail("a collective such as all_reduce", begin, found);
    }
  }
  int64_t size() {
    const size_t begin = at_;
    const std::string found = word();
    if (found == "inf") return kInfinity;
    try {
      return parse_bytes(found);
    } catch (const Error&) {
      fail("a size such as 0, 4k, 16M or inf", begin, found);
    }
  }
  std::string algorithm() {
    const size_t begin = at_;
    const std::string found = word();
    if (found.empty()) fail("the name of an algorithm or auto", begin, rest());
    return found;
  }
  size_t at() const { return at_; }
  std::string rest() const { return done() ? "the end" : text_.substr(at_, 16); }
  [[noreturn]] void fail(const std::string& expected, size_t at, const std::string& got) const {
    throw Error(Code::invalid_argument, "selection table, column " + std::to_string(at + 1) +
                                            ": expected " + expected + "; got \"" + got +
                                            "\"; the form is collective:from-to=algorithm,...;...");
  }

 private:
  const std::string& text_;
  size_t at_ = 0;
};

std::string text_of(int64_t bytes) {
  if (bytes == kInfinity) return "inf";
  for (const auto& [suffix, shift] : {std::pair("G", 30), std::pair("M", 20), std::pair("k", 10)}) {
    if (bytes > 0 && bytes % (int64_t{1} << shift) == 0) {
      return std::to_string(bytes >> shift) + suffix;
    }
  }
  return std::to_string(bytes);
}

}  // namespace

SelectionTable::SelectionTable(const std::string& text) {
  Reader reader(text);
  while (!reader.done()) {
    const Collective collective = reader.collective();
    reader.expect(':', "after the collective");
    do {
      const size_t begin = reader.at();
      Row row{collective, reader.size(), 0, ""};
      reader.expect('-', "between the sizes");
      row.to = reader.size();
      if (row.to <= row.from) {
        reader.fail("a range that is not empty", begin, text.substr(begin, reader.at() - begin));
      }
      reader.expect('=', "before the algorithm");
      row.algorithm = reader.algorithm();
      for (const Row& other : rows_) {
        if (other.collective == collective && row.from < other.to && other.from < row.to) {
          reader.fail("a range apart from " + text_of(other.from) + "-" + text_of(other.to), begin,
                      text.substr(begin, reader.at() - begin));
        }
      }
      rows_.push_back(std::move(row));
    } while (reader.skip(','));
    if (!reader.done()) reader.expect(';', "or \",\" after the algorithm");
  }
}

const std::string& SelectionTable::algorithm(Collective collective, int64_t bytes) const {
  static const std::string automatic = "auto";
  for (const Row& row : rows_) {
    if (row.collective == collective && row.from <= bytes && bytes < row.to) return row.algorithm;
  }
  return automatic;
}

std::string SelectionTable::text() const {
  std::string text;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    const bool same = i > 0 && rows_[i - 1].collective == row.collective;
    if (i > 0) text += same ? "," : ";";
    if (!same) text += std::string(name(row.collective)) + ":";
    text += text_of(row.from) + "-" + text_of(row.to) + "=" + row.algorithm;
  }
  return text;
}

}  // namespace hetcomm
