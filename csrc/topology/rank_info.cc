#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>

#include "base/status.h"
#include "topology/topology.h"

namespace hetcomm {
namespace {

constexpr const char* fabric_names[] = {"shm",        "nvlink", "xgmi",    "pcie",
                                        "infiniband", "roce",   "ethernet"};

// Lines of tab-separated fields; backslash, tab, newline and other control characters are escaped.
constexpr const char* heading = "hetcomm rank 1";

std::string quoted(const std::string& text) { return std::string("\"").append(text) + '"'; }

std::string escape(const std::string& text) {
  constexpr char digits[] = "0123456789abcdef";
  std::string escaped;
  for (unsigned char c : text) {
    if (c < 0x20 || c == 0x7f || c == '\\') {
      escaped += {'\\', digits[c >> 4], digits[c & 15]};
    } else {
      escaped += static_cast<char>(c);
    }
  }
  return escaped;
}

// Reads the text line by line, so that an error can name the line.
class Parser {
 public:
  explicit Parser(const std::string& text) : stream_(text) {}

  // Moves to the next line and splits it; false at the end.
  bool next() {
    std::string line;
    if (!std::getline(stream_, line)) return false;
    ++line_;
    fields_.clear();
    for (size_t start = 0, end; start <= line.size(); start = end + 1) {
      end = std::min(line.find('\t', start), line.size());
      fields_.push_back(line.substr(start, end - start));
    }
    return true;
  }

  const std::string& key() const { return fields_[0]; }

  void expect_fields(size_t count) const {
    if (fields_.size() != count + 1) {
      fail(std::to_string(count) + " fields after " + quoted(key()),
           std::to_string(fields_.size() - 1));
    }
  }

  std::string text(size_t index) const {
    const std::string& field = fields_[index];
    std::string plain;
    for (size_t i = 0; i < field.size(); ++i) {
      if (field[i] != '\\') {
        plain += field[i];
        continue;
      }
      unsigned value = 0;
      const char* first = field.data() + i + 1;
      const char* last = field.data() + std::min(i + 3, field.size());
      auto [end, error] = std::from_chars(first, last, value, 16);
      if (error != std::errc() || end != first + 2) {
        fail("two hexadecimal digits after a backslash", quoted(field));
      }
      plain += static_cast<char>(value);
      i += 2;
    }
    return plain;
  }

  template <typename Integer>
  Integer number(size_t index) const {
    const std::string& field = fields_[index];
    Integer value = 0;
    auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    if (error != std::errc() || end != field.data() + field.size()) {
      fail("an integer", quoted(field));
    }
    return value;
  }

  [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
    throw Error(Code::invalid_argument,
                "cannot read a rank's facts, line " + std::to_string(line_) + ": expected " +
                    expected + ", got " + got + "; run the same hetcomm version on every rank");
  }

 private:
  std::istringstream stream_;
  int line_ = 0;
  std::vector<std::string> fields_;
};

Nic parse_nic(const Parser& parser) {
  parser.expect_fields(7);
  Nic nic;
  nic.name = parser.text(1);
  nic.interface = parser.text(2);
  try {
    nic.fabric = fabric_from_name(parser.text(3));
  } catch (const Error&) {
    parser.fail("a fabric", quoted(parser.text(3)));
  }
  nic.bandwidth = parser.number<int64_t>(4);
  int known = parser.number<int>(5);
  if (known != 0 && known != 1) parser.fail("0 or 1", std::to_string(known));
  nic.bandwidth_known = known == 1;
  nic.numa = parser.number<int>(6);
  nic.address = parser.text(7);
  return nic;
}

}  // namespace

const char* name(Fabric fabric) {
  auto index = static_cast<size_t>(fabric);
  return index < std::size(fabric_names) ? fabric_names[index] : "unknown";
}

Fabric fabric_from_name(const std::string& text) {
  std::string known;
  for (size_t i = 0; i < std::size(fabric_names); ++i) {
    if (text == fabric_names[i]) return static_cast<Fabric>(i);
    known += std::string(i == 0 ? "" : ", ") + fabric_names[i];
  }
  throw Error(Code::invalid_argument, "expected a fabric (" + known + "), got \"" + text + "\"");
}

std::string serialize(const RankInfo& info) {
  std::ostringstream out;
  out << heading << '\n'
      << "host\t" << escape(info.host) << '\n'
      << "host_name\t" << escape(info.host_name) << '\n'
      << "vendor\t" << escape(info.vendor) << '\n'
      << "cores\t" << std::to_string(info.cores) << '\n';
  for (const Nic& nic : info.nics) {
    out << "nic\t" << escape(nic.name) << '\t' << escape(nic.interface) << '\t' << name(nic.fabric)
        << '\t' << std::to_string(nic.bandwidth) << '\t' << (nic.bandwidth_known ? '1' : '0')
        << '\t' << std::to_string(nic.numa) << '\t' << escape(nic.address) << '\n';
  }
  for (const auto& [library, version] : info.libraries) {
    out << "library\t" << escape(library) << '\t' << escape(version) << '\n';
  }
  return out.str();
}

RankInfo parse_rank_info(const std::string& text) {
  Parser parser(text);
  if (!parser.next() || parser.key() != heading) {
    parser.fail(quoted(heading), text.empty() ? "nothing" : "something else");
  }
  RankInfo info;
  std::set<std::string> missing = {"host", "host_name", "vendor", "cores"};
  while (parser.next()) {
    const std::string& key = parser.key();
    if (key == "nic") {
      info.nics.push_back(parse_nic(parser));
    } else if (key == "library") {
      parser.expect_fields(2);
      if (!info.libraries.emplace(parser.text(1), parser.text(2)).second) {
        parser.fail("each library once", quoted(parser.text(1)) + " again");
      }
    } else if (missing.erase(key) == 1) {
      parser.expect_fields(1);
      if (key == "host") info.host = parser.text(1);
      if (key == "host_name") info.host_name = parser.text(1);
      if (key == "vendor") info.vendor = parser.text(1);
      if (key == "cores") info.cores = parser.number<int>(1);
    } else {
      parser.fail("host, host_name, vendor and cores once each, nic or library", quoted(key));
    }
  }
  if (!missing.empty()) parser.fail(quoted(*missing.begin()), "the end of the text");
  return info;
}

}  // namespace hetcomm
