#include "emulated/hostile.h"

#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "base/status.h"
#include "emulated/settings.h"

namespace hetcomm::emulated {

namespace {

constexpr int kPattern = 0xA7;       // of each byte: a large negative number in every dtype
constexpr int64_t kMostQueues = 32;  // as of CUDA_DEVICE_MAX_CONNECTIONS
constexpr int64_t kLongestBound = 3600;
constexpr uint64_t kDelayed = 8;          // one of so many operations
constexpr uint64_t kLongestDelay = 1500;  // microseconds

[[noreturn]] void refuse(const std::string& text) {
  throw Error(Code::invalid_argument,
              "HETCOMM_EMULATED_HOSTILE: expected parts from queues:N (1 to 32), sync, gates, "
              "poison, order, lazy, late, handles, ends, delays:SEED and bound:SECONDS, each once, "
              "with commas between; got \"" +
                  text + "\"; correct or unset the variable");
}

int64_t number(const std::string& digits, int64_t lowest, int64_t highest,
               const std::string& text) {
  if (digits.empty() || digits.size() > 12 ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    refuse(text);
  }
  const int64_t value = std::stoll(digits);
  if (value < lowest || value > highest) refuse(text);
  return value;
}

// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
uint64_t mix(uint64_t value) {
  value += 0x9E3779B97F4A7C15u;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

}  // namespace

Hostile parse_hostile(const std::string& text) {
  static const std::map<std::string, bool Hostile::*> flags = {
      {"sync", &Hostile::sync},       {"gates", &Hostile::gates}, {"poison", &Hostile::poison},
      {"order", &Hostile::order},     {"lazy", &Hostile::lazy},   {"late", &Hostile::late},
      {"handles", &Hostile::handles}, {"ends", &Hostile::ends},
  };
  Hostile hostile;
  std::set<std::string> seen;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t colon = part.find(':');
    const std::string name = part.substr(0, colon);
    const std::string value = colon == std::string::npos ? "" : part.substr(colon + 1);
    if (!seen.insert(name).second) refuse(text);
    if (name == "queues") {
      hostile.queues = static_cast<int>(number(value, 1, kMostQueues, text));
    } else if (name == "delays") {
      hostile.delays = true;
      hostile.seed = static_cast<uint64_t>(number(value, 0, INT64_MAX, text));
    } else if (name == "bound") {
      hostile.bound = std::chrono::seconds(number(value, 1, kLongestBound, text));
    } else if (const auto flag = flags.find(part); flag != flags.end()) {
      hostile.*flag->second = true;
    } else {
      refuse(text);
    }
  }
  if (text.empty() || text.back() == ',') refuse(text);
  return hostile;
}

void delay(uint64_t place, uint64_t number) {
  if (!settings().hostile.delays) return;
  const uint64_t drawn = mix(mix(settings().hostile.seed ^ place << 32) ^ number);
  if (drawn % kDelayed != 0) return;
  std::this_thread::sleep_for(std::chrono::microseconds(drawn / kDelayed % (kLongestDelay + 1)));
}

void poison(void* memory, size_t bytes) {
  if (settings().hostile.poison && bytes > 0) std::memset(memory, kPattern, bytes);
}

void poison_target(void* target, size_t bytes, const void* source, size_t source_bytes) {
  const auto first = reinterpret_cast<uintptr_t>(target);
  const auto other = reinterpret_cast<uintptr_t>(source);
  if (target != nullptr && (first + bytes <= other || other + source_bytes <= first)) {
    poison(target, bytes);
  }
}

}  // namespace hetcomm::emulated
