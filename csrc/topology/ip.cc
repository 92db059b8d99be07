#include "topology/ip.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace hetcomm {
namespace {

// An address as 4 or 16 bytes.
struct Ip {
  int family = 0;  // 0: not an address
  unsigned char bytes[16] = {};

  explicit Ip(const std::string& text) {
    for (int tried : {AF_INET, AF_INET6}) {
      if (inet_pton(tried, text.c_str(), bytes) == 1) family = tried;
      if (family != 0) break;
    }
  }
  int bits() const { return family == AF_INET ? 32 : 128; }
};

// -1 without a prefix length.
int prefix_length(const std::string& entry) {
  size_t slash = entry.find('/');
  return slash == std::string::npos ? -1 : std::atoi(entry.c_str() + slash + 1);
}

}  // namespace

std::string ip_address(const std::string& entry) { return entry.substr(0, entry.find('/')); }

std::string ip_network(const std::string& entry) {
  Ip ip(ip_address(entry));
  int length = prefix_length(entry);
  if (ip.family == 0 || length < 0 || length > ip.bits()) return "";
  for (int bit = length; bit < ip.bits(); ++bit) ip.bytes[bit / 8] &= ~(0x80 >> bit % 8);
  char text[INET6_ADDRSTRLEN];
  inet_ntop(ip.family, ip.bytes, text, sizeof text);
  return std::string(text) + "/" + std::to_string(length);
}

std::string ip_gid(const std::string& entry) {
  Ip ip(ip_address(entry));
  if (ip.family == 0) return "";
  // IPv4 addresses are mapped into IPv6: ::ffff:10.1.0.5.
  unsigned char gid[16] = {};
  if (ip.family == AF_INET) gid[10] = gid[11] = 0xff;
  std::copy(ip.bytes, ip.bytes + ip.bits() / 8, gid + 16 - ip.bits() / 8);
  std::string text;
  for (int i = 0; i < 16; i += 2) {
    char group[8];
    std::snprintf(group, sizeof group, "%s%02x%02x", i == 0 ? "" : ":", gid[i], gid[i + 1]);
    text += group;
  }
  return text;
}

bool is_point_to_point(const std::string& network) {
  Ip ip(ip_address(network));
  return ip.family != 0 && prefix_length(network) >= ip.bits() - 2;
}

}  // namespace hetcomm
