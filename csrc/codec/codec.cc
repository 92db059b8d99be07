#include "codec/codec.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>

#include "base/config.h"
#include "base/fnv.h"
#include "codec/rows.h"
#include "device/cast.h"

namespace hetcomm {
namespace {

const CodecRow* const kRows[] = {&kLosslessRow, &kBf16Row, &kFp16Row, &kFp8E4m3Row,
                                 &kFp8E5m2Row,  &kInt8Row, &kInt4Row, &kTopkRow};

// By name. Guarded by made_mutex.
std::map<std::string, std::unique_ptr<Codec>>& made() {
  static auto* const codecs = new std::map<std::string, std::unique_ptr<Codec>>;
  return *codecs;
}
std::mutex made_mutex;

// The one codec of the row and parameter; null if the parameter cannot be.
const Codec* find(const CodecRow& row, const std::string& parameter) {
  const std::string spelled = row.spelled ? row.spelled(parameter) : parameter;
  const std::string name = row.name + (spelled == row.usual ? "" : ":" + spelled);
  const std::lock_guard lock(made_mutex);
  const auto known = made().find(name);
  if (known != made().end()) return known->second.get();
  std::unique_ptr<Codec> codec = row.make(name, parameter);
  return codec ? made().emplace(name, std::move(codec)).first->second.get() : nullptr;
}

// The settings of several levels so far, by id. Guarded by made_mutex.
std::map<uint32_t, std::string>& levels_by_id() {
  static auto* const names = new std::map<uint32_t, std::string>;
  return *names;
}

// Above the numbers of id_of() for other settings. Bit 30 is free for the users of ids.
uint32_t as_id(uint64_t hash) { return (static_cast<uint32_t>(hash) & 0x3fffffff) | 1u << 31; }

// Of a name without levels.
CodecSetting single_setting(const std::string& name) {
  if (name == "none") return {};
  if (name == "auto") return {.codec = find(kLosslessRow, kLosslessRow.usual), .automatic = true};
  std::string known = "none, auto";
  const size_t colon = name.find(':');
  for (const CodecRow* row : kRows) {
    known += std::string(", ") + row->name;
    if (name.substr(0, colon) != row->name) continue;
    const bool usual = colon == std::string::npos;
    if (usual) return {find(*row, row->usual)};
    const Codec* const codec = *row->usual ? find(*row, name.substr(colon + 1)) : nullptr;
    if (codec) return {codec};
    throw Error(Code::invalid_argument,
                "codec \"" + name + "\": expected " +
                    (*row->usual ? std::string(row->parameters) + ", such as \"" + row->name + ":" +
                                       row->usual + "\""
                                 : "no parameter, \"" + std::string(row->name) + "\""));
  }
  throw Error(Code::invalid_argument,
              "unknown codec: expected one of " + known + "; got \"" + name + "\"");
}

// Of "cluster=int8,host=bf16". A level that is left out has no codec.
CodecSetting setting_of_levels(const std::string& text) {
  const auto refuse = [&](const std::string& expected, const std::string& got) {
    throw Error(Code::invalid_argument, "codec \"" + text + "\": expected " + expected +
                                            ", as in \"cluster=int8,host=bf16\"; got \"" + got +
                                            "\"");
  };
  CodecSetting found;
  std::set<std::string> levels;
  for (size_t begin = 0, end; begin <= text.size(); begin = end + 1) {
    end = std::min(text.find(',', begin), text.size());
    const std::string entry = text.substr(begin, end - begin);
    const size_t equals = std::min(entry.find('='), entry.size());
    const std::string level = entry.substr(0, equals);
    const bool known = level == "cluster" || level == "host";
    if (equals == entry.size() || !known || !levels.insert(level).second) {
      refuse("the levels cluster and host once each", entry);
    }
    const CodecSetting codec = single_setting(entry.substr(equals + 1));
    if (level == "cluster") {
      found.codec = codec.codec;
      found.automatic = codec.automatic;
    } else {
      if (codec.codec && !codec.lossy()) refuse("none or a lossy codec for the host", entry);
      found.in_host = codec.codec;
    }
  }
  if (found.in_host) {
    const std::lock_guard lock(made_mutex);
    levels_by_id().emplace(id_of(found), name_of(found));
  }
  return found;
}

}  // namespace

bool CodecSetting::lossy() const { return in_host || (codec && !codec->lossless()); }

CodecSetting CodecSetting::at(bool several_hosts) const {
  if (several_hosts) return {.codec = codec, .automatic = automatic, .given = given};
  return {.codec = in_host, .given = given};
}

const std::vector<const Codec*>& codecs() {
  static const auto* const all = [] {
    auto* const list = new std::vector<const Codec*>;
    for (const CodecRow* row : kRows) list->push_back(find(*row, row->usual));
    return list;
  }();
  return *all;
}

CodecSetting codec_setting(const std::string& name) {
  const bool levels = name.find('=') != std::string::npos;
  return levels ? setting_of_levels(name) : single_setting(name);
}

std::string name_of(const CodecSetting& setting) {
  if (!setting.given) return "group";
  const std::string name = setting.automatic ? "auto"
                           : setting.codec   ? setting.codec->name()
                                             : "none";
  return setting.in_host ? "cluster=" + name + ",host=" + setting.in_host->name() : name;
}

uint32_t id_of(const CodecSetting& setting) {
  if (!setting.given) return 0;
  const uint32_t id = !setting.codec ? 1 : setting.automatic ? 2 : setting.codec->id();
  return setting.in_host ? as_id(uint64_t{31} * id + setting.in_host->id()) : id;
}

std::string name_of_id(uint32_t id) {
  if (id < 3) return id == 0 ? "group" : id == 1 ? "none" : "auto";
  codecs();  // makes them
  const std::lock_guard lock(made_mutex);
  for (const auto& [name, codec] : made()) {
    if (codec->id() == id) return name;
  }
  const auto levels = levels_by_id().find(id);
  return levels == levels_by_id().end() ? "another codec" : levels->second;
}

std::string bridge_codec() {
  std::string name = setting("HETCOMM_BRIDGE_CODEC", "auto");
  try {
    codec_setting(name);
  } catch (const Error& error) {
    throw Error(Code::invalid_argument,
                "HETCOMM_BRIDGE_CODEC: " + error.status().details().message);
  }
  return name;
}

Codec::Codec(std::string name) : name_(std::move(name)), id_(as_id(fnv1a(name_))) {}

Status Codec::sum(Dtype, void*, const void*, const void* const*, int, size_t) const {
  throw std::logic_error(name() + " adds no encoded elements; decode them first");
}

size_t encoded_length(const void* memory) {
  uint64_t bytes;
  std::memcpy(&bytes, memory, sizeof(bytes));
  return bytes;
}

void set_encoded_length(void* memory, size_t length) {
  const uint64_t bytes = length;
  std::memcpy(memory, &bytes, sizeof(bytes));
}

Status encode_elements(const Codec& codec, Dtype dtype, void* encoded, const void* source,
                       float* residual, size_t count) {
  const size_t length = codec.encode(dtype, encoded_data(encoded), source, residual, count);
  if (codec.lossless()) set_encoded_length(encoded, length);
  return Status();
}

Status decode_elements(const Codec& codec, Dtype dtype, void* target, const void* encoded,
                       size_t count) {
  const size_t length = codec.lossless() ? encoded_length(encoded) : codec.capacity(dtype, count);
  return codec.decode(dtype, target, encoded_data(encoded), length, count);
}

Status sum_elements(const Codec& codec, Dtype dtype, void* target, const void* plain,
                    const std::vector<const void*>& encoded, size_t count) {
  if (codec.lossless()) return decode_elements(codec, dtype, target, encoded.at(0), count);
  std::vector<const void*> data;
  for (const void* memory : encoded) data.push_back(encoded_data(memory));
  return codec.sum(dtype, target, plain, data.data(), static_cast<int>(data.size()), count);
}

void sum_or_nan(const Codec& codec, Dtype dtype, void* target, const void* plain,
                const std::vector<const void*>& encoded, size_t count) {
  if (sum_elements(codec, dtype, target, plain, encoded, count).ok()) return;
  const std::vector<float> nans(count, std::numeric_limits<float>::quiet_NaN());
  cast(dtype, target, Dtype::float32, nans.data(), count);
}

}  // namespace hetcomm
