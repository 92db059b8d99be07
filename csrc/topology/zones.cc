#include "topology/zones.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/status.h"
#include "base/text.h"

namespace hetcomm {
namespace {

constexpr size_t kMostLevels = 4;
// Bits per second, as in cluster files.
constexpr double kLeastBits = 1e6, kMostBits = 1e12;

[[noreturn]] void refuse(const std::vector<RankInfo>& ranks, int rank, const std::string& expected,
                         const std::string& got, const std::string& remedy) {
  throw Error(Status(Code::invalid_argument,
                     "HETCOMM_ZONE=" + ranks[rank].zone + " of rank " + std::to_string(rank) +
                         " on " + ranks[rank].host_name + ": expected " + expected + ", got " +
                         got + "; " + remedy,
                     rank));
}

std::string quoted(std::string_view text) { return "\"" + std::string(text) + "\""; }

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_digit);
}

struct Label {
  std::string name;
  int64_t uplink = 0;
};

// "1gbit", "2.5gbit", "250mbit" or "1500kbit" in bytes per second; 0 for other texts and rates.
int64_t parse_rate(std::string_view text) {
  const std::pair<std::string_view, double> units[] = {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};
  for (const auto& [unit, bits] : units) {
    if (!text.ends_with(unit)) continue;
    text.remove_suffix(unit.size());
    const size_t point = std::min(text.find('.'), text.size());
    const bool whole = point == text.size() || all_digits(text.substr(point + 1));
    if (!all_digits(text.substr(0, point)) || !whole) return 0;
    const double rate = leading_number(text).value_or(0) * bits;
    return rate >= kLeastBits && rate <= kMostBits ? static_cast<int64_t>(rate / 8) : 0;
  }
  return 0;
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 63 && is_letter_or_digit(text[0]) &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return is_letter_or_digit(c) || c == '-' || c == '_' || c == '.';
         });
}

// The zones of a rank, the widest first.
std::vector<Label> parse(const std::vector<RankInfo>& ranks, int rank) {
  std::vector<Label> labels;
  std::string_view rest = ranks[rank].zone;
  while (!rest.empty()) {
    const size_t slash = std::min(rest.find('/'), rest.size());
    const std::string_view part = rest.substr(0, slash);
    const size_t at = std::min(part.find('@'), part.size());
    Label label{std::string(part.substr(0, at))};
    if (at < part.size()) label.uplink = parse_rate(part.substr(at + 1));
    const bool ends = slash + 1 == rest.size();
    if (!is_name(label.name) || ends || (at < part.size() && label.uplink == 0)) {
      refuse(
          ranks, rank, "names of zones, the widest first, such as paris@1gbit/rack3",
          ends ? "a slash at the end" : quoted(part),
          "begin names with a letter or digit, use these and - _ . only, and rates from 1mbit to "
          "1000gbit");
    }
    labels.push_back(std::move(label));
    rest.remove_prefix(std::min(slash + 1, rest.size()));
  }
  if (labels.size() > kMostLevels) {
    refuse(ranks, rank, "at most " + std::to_string(kMostLevels) + " zones",
           std::to_string(labels.size()), "leave out those without a slower uplink");
  }
  return labels;
}

}  // namespace

std::vector<std::vector<Zone>> find_zones(const std::vector<RankInfo>& ranks,
                                          const std::vector<std::vector<int>>& hosts) {
  for (const std::vector<int>& members : hosts) {
    for (int rank : members) {
      if (ranks[rank].zone == ranks[members[0]].zone) continue;
      refuse(ranks, rank,
             quoted(ranks[members[0]].zone) + " as on rank " + std::to_string(members[0]) +
                 " of the same host",
             quoted(ranks[rank].zone), "a host is in one zone of each level");
    }
  }
  std::vector<std::vector<Zone>> levels(parse(ranks, hosts[0][0]).size());
  std::vector<std::map<std::string, size_t>> known(levels.size());
  for (size_t host = 0; host < hosts.size(); ++host) {
    const int rank = hosts[host][0];
    const std::vector<Label> labels = parse(ranks, rank);
    if (labels.size() != levels.size()) {
      refuse(ranks, rank,
             std::to_string(levels.size()) + " zones as on rank " + std::to_string(hosts[0][0]) +
                 " on " + ranks[hosts[0][0]].host_name,
             std::to_string(labels.size()), "name a zone of every level on all hosts, or none");
    }
    std::string path;
    for (size_t level = 0; level < levels.size(); ++level) {
      path += (level == 0 ? "" : "/") + labels[level].name;
      const auto [entry, is_new] = known[level].emplace(path, levels[level].size());
      if (is_new) levels[level].push_back({path, labels[level].uplink, {}});
      Zone& zone = levels[level][entry->second];
      if (zone.uplink != labels[level].uplink) {
        const int other = hosts[zone.hosts[0]][0];
        refuse(ranks, rank,
               "the uplink of " + path + " as in HETCOMM_ZONE=" + ranks[other].zone + " of rank " +
                   std::to_string(other),
               quoted(ranks[rank].zone), "a zone has one uplink");
      }
      zone.hosts.push_back(static_cast<int>(host));
    }
  }
  return levels;
}

}  // namespace hetcomm
