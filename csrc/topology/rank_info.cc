#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>

#include "base/status.h"
#include "topology/topology.h"

namespace hetcomm {
namespace {

constexpr const char* fabric_names[] = {"shm", "pcie", "infiniband", "roce", "ethernet"};
constexpr const char* memory_names[] = {"host", "device"};

template <typename Value, size_t count>
const char* name_of(Value value, const char* const (&names)[count]) {
  auto index = static_cast<size_t>(value);
  return index < count ? names[index] : "unknown";
}

template <typename Value, size_t count>
Value value_of(const std::string& text, const char* const (&names)[count],
               const std::string& expected) {
  std::string known;
  for (size_t i = 0; i < count; ++i) {
    if (text == names[i]) return static_cast<Value>(i);
    known += std::string(i == 0 ? "" : ", ") + names[i];
  }
  throw Error(Code::invalid_argument,
              "expected " + expected + " (" + known + "), got \"" + text + "\"");
}

Memory memory_from_name(const std::string& text) {
  return value_of<Memory>(text, memory_names, "a kind of memory");
}

// Lines of tab-separated fields; backslash, tab, newline and other control characters are escaped.
constexpr const char* heading = "hetcomm rank 8";

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

// "0-3,8"
std::string ranges(const std::vector<int>& ascending) {
  std::string text;
  for (size_t first = 0, last; first < ascending.size(); first = last + 1) {
    last = first;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(ascending[first]);
    if (last > first) text += "-" + std::to_string(ascending[last]);
  }
  return text;
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
      // escape() writes only control characters and the backslash in this form.
      if (error != std::errc() || end != first + 2 || value > 0x7f) {
        fail("two hexadecimal digits up to 7f after a backslash", quoted(field));
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

  bool flag(size_t index) const {
    int value = number<int>(index);
    if (value != 0 && value != 1) fail("0 or 1", std::to_string(value));
    return value == 1;
  }

  // Reads what ranges() writes.
  std::vector<int> numbers(size_t index) const {
    constexpr int kMost = 1 << 20;  // processors of a host
    const std::string& field = fields_[index];
    std::vector<int> found;
    const char *at = field.data(), *end = at + field.size();
    while (at != end) {
      int first = 0, last = 0;
      auto read = std::from_chars(at, end, first);
      last = first;
      if (read.ec == std::errc() && read.ptr != end && *read.ptr == '-') {
        read = std::from_chars(read.ptr + 1, end, last);
      }
      const bool ascends = first > (found.empty() ? -1 : found.back()) && last >= first;
      const bool goes_on = read.ptr != end && *read.ptr == ',' && read.ptr + 1 != end;
      if (read.ec != std::errc() || !ascends || last >= kMost || (read.ptr != end && !goes_on)) {
        fail("ascending ranges such as 0-3,8, below " + std::to_string(kMost), quoted(field));
      }
      for (int number = first; number <= last; ++number) found.push_back(number);
      at = read.ptr == end ? end : read.ptr + 1;
    }
    return found;
  }

  // Reads a name by `from_name`.
  template <typename Value>
  Value named(size_t index, const char* expected, Value (*from_name)(const std::string&)) const {
    try {
      return from_name(text(index));
    } catch (const Error&) {
      fail(expected, quoted(text(index)));
    }
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
  parser.expect_fields(9);
  Nic nic;
  nic.name = parser.text(1);
  nic.interface = parser.text(2);
  nic.fabric = parser.named(3, "a fabric", fabric_from_name);
  nic.bandwidth = parser.number<int64_t>(4);
  nic.bandwidth_known = parser.flag(5);
  nic.numa = parser.number<int>(6);
  nic.address = parser.text(7);
  nic.subnet = parser.text(8);
  nic.gid = parser.number<int>(9);
  return nic;
}

}  // namespace

const char* name(Fabric fabric) { return name_of(fabric, fabric_names); }

Fabric fabric_from_name(const std::string& text) {
  return value_of<Fabric>(text, fabric_names, "a fabric");
}

const char* name(Memory memory) { return name_of(memory, memory_names); }

std::string serialize(const RankInfo& info) {
  std::ostringstream out;
  out << heading << '\n'
      << "host\t" << escape(info.host) << '\n'
      << "host_name\t" << escape(info.host_name) << '\n'
      << "machine\t" << escape(info.machine) << '\n'
      << "vendor\t" << escape(info.vendor) << '\n'
      << "cores\t" << std::to_string(info.cores) << '\n'
      << "processors\t" << ranges(info.processors) << '\n'
      << "memory\t" << name(info.memory) << '\n'
      << "direct_bytes\t" << std::to_string(info.direct_bytes) << '\n'
      << "kernels\t" << (info.kernels ? '1' : '0') << '\n'
      << "device\t" << escape(info.device) << '\n'
      << "ccl\t" << escape(info.ccl) << '\n'
      << "float8\t" << (info.float8 ? '1' : '0') << '\n'
      << "rails\t" << (info.rails ? '1' : '0') << '\n'
      << "island\t" << escape(info.island) << '\n'
      << "zone\t" << escape(info.zone) << '\n';
  for (Fabric fabric : info.direct) out << "direct\t" << name(fabric) << '\n';
  for (const Nic& nic : info.nics) {
    out << "nic\t" << escape(nic.name) << '\t' << escape(nic.interface) << '\t' << name(nic.fabric)
        << '\t' << std::to_string(nic.bandwidth) << '\t' << (nic.bandwidth_known ? '1' : '0')
        << '\t' << std::to_string(nic.numa) << '\t' << escape(nic.address) << '\t'
        << escape(nic.subnet) << '\t' << std::to_string(nic.gid) << '\n';
  }
  for (const std::string& warning : info.warnings) out << "warning\t" << escape(warning) << '\n';
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
  std::set<std::string> missing = {"host",       "host_name", "machine", "vendor", "cores",
                                   "processors", "memory",    "kernels", "device", "direct_bytes",
                                   "ccl",        "float8",    "rails",   "island", "zone"};
  while (parser.next()) {
    const std::string& key = parser.key();
    if (key == "nic") {
      info.nics.push_back(parse_nic(parser));
    } else if (key == "direct") {
      parser.expect_fields(1);
      if (!info.direct.insert(parser.named(1, "a fabric", fabric_from_name)).second) {
        parser.fail("each fabric once", quoted(parser.text(1)) + " again");
      }
    } else if (key == "warning") {
      parser.expect_fields(1);
      info.warnings.push_back(parser.text(1));
    } else if (key == "library") {
      parser.expect_fields(2);
      if (!info.libraries.emplace(parser.text(1), parser.text(2)).second) {
        parser.fail("each library once", quoted(parser.text(1)) + " again");
      }
    } else if (missing.erase(key) == 1) {
      parser.expect_fields(1);
      if (key == "host") info.host = parser.text(1);
      if (key == "host_name") info.host_name = parser.text(1);
      if (key == "machine") info.machine = parser.text(1);
      if (key == "vendor") info.vendor = parser.text(1);
      if (key == "cores") info.cores = parser.number<int>(1);
      if (key == "processors") info.processors = parser.numbers(1);
      if (key == "memory") info.memory = parser.named(1, "a kind of memory", memory_from_name);
      if (key == "direct_bytes") info.direct_bytes = parser.number<int64_t>(1);
      if (key == "kernels") info.kernels = parser.flag(1);
      if (key == "device") info.device = parser.text(1);
      if (key == "ccl") info.ccl = parser.text(1);
      if (key == "float8") info.float8 = parser.flag(1);
      if (key == "rails") info.rails = parser.flag(1);
      if (key == "island") info.island = parser.text(1);
      if (key == "zone") info.zone = parser.text(1);
    } else {
      parser.fail("each fact of a rank once, direct, nic, warning or library", quoted(key));
    }
  }
  if (!missing.empty()) parser.fail(quoted(*missing.begin()), "the end of the text");
  return info;
}

}  // namespace hetcomm
