#include "codec/codec.h"

#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>

#include "base/config.h"
#include "base/fnv.h"
#include "codec/rows.h"

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

}  // namespace

const std::vector<const Codec*>& codecs() {
  static const auto* const all = [] {
    auto* const list = new std::vector<const Codec*>;
    for (const CodecRow* row : kRows) list->push_back(find(*row, row->usual));
    return list;
  }();
  return *all;
}

CodecSetting codec_setting(const std::string& name) {
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

std::string name_of(const CodecSetting& setting) {
  if (!setting.given) return "group";
  if (setting.automatic) return "auto";
  return setting.codec ? setting.codec->name() : "none";
}

uint32_t id_of(const CodecSetting& setting) {
  if (!setting.given) return 0;
  if (!setting.codec) return 1;
  return setting.automatic ? 2 : setting.codec->id();
}

std::string name_of_id(uint32_t id) {
  if (id < 3) return id == 0 ? "group" : id == 1 ? "none" : "auto";
  codecs();  // makes them
  const std::lock_guard lock(made_mutex);
  for (const auto& [name, codec] : made()) {
    if (codec->id() == id) return name;
  }
  return "another codec";
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

// Above the numbers of id_of() for other settings. Bit 30 is free for the users of ids.
Codec::Codec(std::string name)
    : name_(std::move(name)), id_((static_cast<uint32_t>(fnv1a(name_)) & 0x3fffffff) | 1u << 31) {}

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
  std::vector<const void*> data;
  for (const void* memory : encoded) data.push_back(encoded_data(memory));
  return codec.sum(dtype, target, plain, data.data(), static_cast<int>(data.size()), count);
}

}  // namespace hetcomm
