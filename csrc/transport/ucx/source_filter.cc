#include "transport/ucx/source_filter.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "base/status.h"

namespace hetcomm {
namespace {

constexpr uint32_t kAdmit = ~uint32_t{0}, kDrop = 0;
constexpr size_t kHead = 7, kRangeCode = 6, kPrefixCode = 13;  // most instructions of each

constexpr uint32_t network_header(int offset) {
  return static_cast<uint32_t>(SKF_NET_OFF + offset);
}

sock_filter load(int offset) { return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, network_header(offset)); }
sock_filter jump(int kind, uint32_t value, int yes, int no) {
  return {static_cast<uint16_t>(BPF_JMP | kind | BPF_K), static_cast<uint8_t>(yes),
          static_cast<uint8_t>(no), value};
}
sock_filter give(uint32_t result) { return BPF_STMT(BPF_RET | BPF_K, result); }

using Range = std::pair<uint32_t, uint32_t>;

// Binary search, because a cluster has thousands of addresses.
void search(const std::vector<Range>& ranges, size_t begin, size_t end,
            std::vector<sock_filter>& code) {
  if (end - begin == 1) {
    code.insert(code.end(), {jump(BPF_JGE, ranges[begin].first, 0, 2),
                             jump(BPF_JGT, ranges[begin].second, 1, 0), give(kAdmit), give(kDrop)});
    return;
  }
  const size_t middle = (begin + end) / 2;
  code.push_back(jump(BPF_JGE, ranges[middle].first, 0, 1));
  const size_t far = code.size();  // a conditional jump reaches 255 instructions only
  code.push_back(jump(BPF_JA, 0, 0, 0));
  search(ranges, begin, middle, code);
  code[far].k = static_cast<uint32_t>(code.size() - far - 1);
  search(ranges, middle, end, code);
}

uint32_t mask_of(int bits) {
  return bits <= 0 ? 0 : bits >= 32 ? ~uint32_t{0} : ~uint32_t{0} << (32 - bits);
}

}  // namespace

void SourceFilter::add(const std::string& source) {
  if (source == "any") {
    v4_ = {{0, ~uint32_t{0}}};
    v6_ = {Prefix{{}, 0}};
    return;
  }
  const size_t slash = source.find('/');
  const std::string address = source.substr(0, slash);
  in_addr v4{};
  Prefix v6;
  const bool is_v4 = inet_pton(AF_INET, address.c_str(), &v4) == 1;
  const int most = is_v4 ? 32 : 128;
  int bits = most;
  bool valid = is_v4 || inet_pton(AF_INET6, address.c_str(), v6.words.data()) == 1;
  if (slash != std::string::npos) {
    const char* end = source.data() + source.size();
    const auto [stop, error] = std::from_chars(source.data() + slash + 1, end, bits);
    valid &= error == std::errc() && stop == end && bits >= 0 && bits <= most;
  }
  if (!valid) {
    throw Error(Code::invalid_argument,
                "sources of connections: expected an IP address, a prefix such as 10.0.0.0/8, or "
                "\"any\"; got \"" +
                    source.substr(0, 100) + "\"; correct it");
  }
  if (is_v4) {
    const uint32_t first = ntohl(v4.s_addr) & mask_of(bits);
    uint32_t& last = v4_.try_emplace(first, first).first->second;
    last = std::max(last, first | ~mask_of(bits));
  } else {
    for (uint32_t& word : v6.words) word = ntohl(word);
    v6_.insert(v6.shortened(bits));
  }
}

SourceFilter::Prefix SourceFilter::Prefix::shortened(int most) const {
  Prefix prefix{words, std::min(bits, most)};
  for (int word = 0; word < 4; ++word) prefix.words[word] &= mask_of(prefix.bits - 32 * word);
  return prefix;
}

// Closes the smallest gaps between ranges until so many ranges are left.
SourceFilter::Ranges SourceFilter::merged(const Ranges& ranges, size_t most) {
  std::vector<Range> joined;
  for (const auto& [first, last] : ranges) {
    const bool touches = !joined.empty() && (joined.back().second == ~uint32_t{0} ||
                                             first <= joined.back().second + 1);
    if (touches) {
      joined.back().second = std::max(joined.back().second, last);
    } else {
      joined.emplace_back(first, last);
    }
  }
  std::set<std::pair<uint32_t, uint32_t>> gaps;  // and the range behind each
  for (size_t i = 1; i < joined.size(); ++i) {
    gaps.emplace(joined[i].first - joined[i - 1].second, joined[i].first);
  }
  std::set<uint32_t> closed;
  for (const auto& [gap, behind] : gaps) {
    if (joined.size() - closed.size() <= most) break;
    closed.insert(behind);
  }
  Ranges left;
  for (const auto& [first, last] : joined) {
    if (closed.contains(first)) {
      left.rbegin()->second = last;
    } else {
      left.emplace_hint(left.end(), first, last);
    }
  }
  return left;
}

SourceFilter::Program SourceFilter::program(size_t most) const {
  Program program;
  std::set<Prefix> prefixes = v6_;
  const size_t most_prefixes = (most - kHead) / 2 / kPrefixCode;
  for (int bits : {64, 48, 32, 0}) {
    if (prefixes.size() <= most_prefixes) break;
    program.exact = false;
    prefixes.clear();
    for (const Prefix& prefix : v6_) prefixes.insert(prefix.shortened(bits));
  }
  const size_t left = most - kHead - prefixes.size() * kPrefixCode;
  const Ranges ranges = merged(v4_, left / kRangeCode);
  if (ranges != merged(v4_, v4_.size())) program.exact = false;
  std::vector<sock_filter>& code = program.code;
  code = {BPF_STMT(BPF_LD | BPF_B | BPF_ABS, network_header(0)),
          BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4),  // the version of IP
          jump(BPF_JEQ, 6, 0, 1), jump(BPF_JA, 0, 0, 0), load(12)};
  const size_t far = 3;
  if (ranges.empty()) {
    code.push_back(give(kDrop));
  } else {
    search({ranges.begin(), ranges.end()}, 0, ranges.size(), code);
  }
  code[far].k = static_cast<uint32_t>(code.size() - far - 1);
  for (const auto& [words, bits] : prefixes) {
    const int used = (bits + 31) / 32;
    std::vector<sock_filter> one;
    for (int word = 0; word < used; ++word) {
      one.push_back(load(8 + 4 * word));
      const uint32_t mask = mask_of(bits - 32 * word);
      if (mask != ~uint32_t{0}) one.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask));
      one.push_back(jump(BPF_JEQ, words[word], 0, 0));
    }
    one.push_back(give(kAdmit));
    for (size_t i = 0; i < one.size(); ++i) {  // a difference leads to the next prefix
      if (BPF_CLASS(one[i].code) == BPF_JMP) one[i].jf = static_cast<uint8_t>(one.size() - i - 1);
    }
    code.insert(code.end(), one.begin(), one.end());
  }
  code.push_back(give(kDrop));
  return program;
}

}  // namespace hetcomm
