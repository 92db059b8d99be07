// The text of a profile: lines of words. The first word is the subject of the line. The other words
// are NAME=VALUE or, in curves, BYTES=NANOSECONDS. "#" begins a comment.

#include <charconv>
#include <fstream>
#include <sstream>

#include "base/config.h"
#include "base/status.h"
#include "plan/profile.h"

namespace hetcomm {
namespace {

const char* const kHeading = "hetcomm profile 1";
// Of a number: bytes, B/s, ns (11 days), or a count. Sums of such numbers fit in 64 bits.
constexpr int64_t kMost = 1'000'000'000'000'000;

class Parser {
 public:
  Parser(const std::string& text, const std::string& source) : stream_(text), source_(source) {}

  // Moves to the next line with words; false at the end.
  bool next() {
    for (std::string line; std::getline(stream_, line);) {
      ++line_;
      std::istringstream words(line.substr(0, line.find('#')));
      words_.clear();
      for (std::string word; words >> word;) words_.push_back(word);
      if (!words_.empty()) return true;
    }
    return false;
  }

  size_t size() const { return words_.size(); }
  const std::string& word(size_t index) const { return words_[index]; }
  std::string joined() const {
    std::string all;
    for (const std::string& word : words_) all += (all.empty() ? "" : " ") + word;
    return all;
  }

  // VALUE of the word with this index, which must be key=VALUE.
  std::string value(size_t index, const std::string& key) const {
    if (index < words_.size() && words_[index].starts_with(key + "=")) {
      return words_[index].substr(key.size() + 1);
    }
    fail(key + "=... as word " + std::to_string(index + 1),
         index < words_.size() ? "\"" + words_[index] + "\"" : "the end of the line");
  }
  int64_t number(size_t index, const std::string& key, int64_t lowest) const {
    return number(value(index, key), lowest);
  }
  int64_t number(const std::string& text, int64_t lowest) const {
    int64_t found = 0;
    const char* last = text.data() + text.size();
    auto [end, error] = std::from_chars(text.data(), last, found);
    if (error != std::errc() || end != last || found < lowest || found > kMost) {
      fail("a whole number from " + std::to_string(lowest) + " to " + std::to_string(kMost),
           "\"" + text + "\"");
    }
    return found;
  }
  void expect_words(size_t count) const {
    if (words_.size() != count) {
      fail(std::to_string(count) + " words", std::to_string(words_.size()));
    }
  }

  // The curve in the words from this index on.
  Curve curve(size_t index) const {
    if (words_.size() < index + 2) {
      fail("at least 2 of BYTES=NANOSECONDS", std::to_string(words_.size() - index));
    }
    Curve curve;
    int64_t lowest = 0, least = 0;
    for (; index < words_.size(); ++index) {
      const size_t sign = words_[index].find('=');
      if (sign == std::string::npos) fail("BYTES=NANOSECONDS", "\"" + words_[index] + "\"");
      const int64_t bytes = number(words_[index].substr(0, sign), lowest);
      least = number(words_[index].substr(sign + 1), least);  // times must not fall
      curve.add(bytes, least);
      lowest = bytes + 1;
    }
    return curve;
  }

  [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
    throw Error(Code::invalid_argument, "cannot read the profile " + source_ + ", line " +
                                            std::to_string(line_) + ": expected " + expected +
                                            ", got " + got + "; run hetcomm tune again");
  }

 private:
  std::istringstream stream_;
  const std::string& source_;
  int line_ = 0;
  std::vector<std::string> words_;
};

Profile::Host parse_host(const Parser& parser) {
  parser.expect_words(6);
  return {parser.value(1, "name"), parser.number(2, "ranks", 1), parser.number(3, "cores", 1),
          parser.value(4, "nics"), parser.number(5, "bandwidth", 0)};
}

IslandSize parse_island(const Parser& parser) {
  parser.expect_words(4);
  return {parser.number(1, "members", 2), parser.number(2, "ranks", 2),
          parser.number(3, "cores", 1)};
}

// A curve of the last island.
void parse_collective(const Parser& parser, Profile& profile) {
  for (Collective collective : profiled_collectives()) {
    if (parser.word(0) != name(collective)) continue;
    if (profile.islands.empty()) parser.fail("an island before its curves", parser.word(0));
    if (!profile.islands.back().curves.emplace(collective, parser.curve(1)).second) {
      parser.fail("each collective of an island once", "\"" + parser.word(0) + "\" again");
    }
    return;
  }
  parser.fail("host, island, a collective, message or memory", "\"" + parser.word(0) + "\"");
}

void expect_complete(const Parser& parser, const Profile& profile) {
  if (profile.hosts.empty()) parser.fail("a host", "the end of the text");
  if (profile.memory_bandwidth == 0) parser.fail("memory", "the end of the text");
  for (const Profile::Island& island : profile.islands) {
    for (Collective collective : profiled_collectives()) {
      if (island.curves.count(collective)) continue;
      parser.fail(std::string(name(collective)) + " of the island of " +
                      std::to_string(island.size.members) + " members",
                  "none");
    }
  }
}

void write(std::ostringstream& out, const Curve& curve) {
  for (const auto& [bytes, nanoseconds] : curve.points()) {
    out << ' ' << std::to_string(bytes) << '=' << std::to_string(nanoseconds);
  }
  out << '\n';
}

}  // namespace

std::string Profile::text() const {
  std::ostringstream out;
  out << kHeading << '\n';
  for (const Host& host : hosts) {
    out << "host name=" << host.name << " ranks=" << std::to_string(host.ranks)
        << " cores=" << std::to_string(host.cores) << " nics=" << host.nics
        << " bandwidth=" << std::to_string(host.bandwidth) << '\n';
  }
  for (const Island& island : islands) {
    out << "island members=" << std::to_string(island.size.members)
        << " ranks=" << std::to_string(island.size.ranks)
        << " cores=" << std::to_string(island.size.cores) << '\n';
    for (const auto& [collective, curve] : island.curves) {
      out << name(collective);
      write(out, curve);
    }
  }
  for (const auto& [fabric, curve] : messages) {
    out << "message " << name(fabric);
    write(out, curve);
  }
  out << "memory bandwidth=" << std::to_string(memory_bandwidth)
      << " step=" << std::to_string(step_overhead) << '\n';
  return out.str();
}

Profile parse_profile(const std::string& text, const std::string& source) {
  Parser parser(text, source);
  Profile profile;
  if (!parser.next() || parser.joined() != kHeading) {
    parser.fail("\"" + std::string(kHeading) + "\"", text.empty() ? "nothing" : "something else");
  }
  while (parser.next()) {
    const std::string& what = parser.word(0);
    if (what == "host") {
      profile.hosts.push_back(parse_host(parser));
    } else if (what == "island") {
      profile.islands.push_back({parse_island(parser), {}});
    } else if (what == "message") {
      if (parser.size() < 2) parser.fail("a fabric after message", "the end of the line");
      Fabric fabric;
      try {
        fabric = fabric_from_name(parser.word(1));
      } catch (const Error&) {
        parser.fail("a fabric", "\"" + parser.word(1) + "\"");
      }
      if (!profile.messages.emplace(fabric, parser.curve(2)).second) {
        parser.fail("each fabric once", "\"" + parser.word(1) + "\" again");
      }
    } else if (what == "memory") {
      parser.expect_words(3);
      profile.memory_bandwidth = parser.number(1, "bandwidth", 1);
      profile.step_overhead = parser.number(2, "step", 0);
    } else {
      parse_collective(parser, profile);
    }
  }
  expect_complete(parser, profile);
  return profile;
}

std::shared_ptr<const Profile> profile_setting() {
  const auto path = setting("HETCOMM_PROFILE");
  if (!path) return nullptr;
  std::ifstream file(*path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    throw Error(Code::invalid_argument,
                "HETCOMM_PROFILE: expected a profile of hetcomm tune in \"" + *path +
                    "\", which cannot be read; make it, or unset the "
                    "variable");
  }
  return std::make_shared<const Profile>(parse_profile(text.str(), *path));
}

}  // namespace hetcomm
