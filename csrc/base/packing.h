#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "base/status.h"

namespace hetcomm {

// Packs values into a byte string, for records between ranks. All ranks run little-endian machines.
// A string comes after its length.
class Packer {
 public:
  Packer& put(uint64_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Packer& put(const std::string& text) {
    put(static_cast<uint64_t>(text.size()));
    bytes_ += text;
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads the values in the same order. Throws Error(invalid_argument) if the bytes end early.
class Unpacker {
 public:
  explicit Unpacker(const std::string& bytes) : bytes_(bytes) {}

  uint64_t number() {
    uint64_t value;
    require(sizeof value);
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string text() {
    const uint64_t length = number();
    require(length);
    at_ += length;
    return bytes_.substr(at_ - length, length);
  }
  bool ended() const { return at_ == bytes_.size(); }
  // Throws Error(invalid_argument) if more bytes follow.
  void end() const {
    if (ended()) return;
    throw Error(Code::invalid_argument, "a record from another rank: expected its end, got " +
                                            std::to_string(bytes_.size() - at_) +
                                            " more bytes; run the same hetcomm version on every "
                                            "rank");
  }

 private:
  void require(uint64_t more) const {
    if (more > bytes_.size() - at_) {
      throw Error(Code::invalid_argument, "a record from another rank ends early: expected " +
                                              std::to_string(more) + " more bytes, got " +
                                              std::to_string(bytes_.size() - at_) +
                                              "; run the same hetcomm version on every rank");
    }
  }

  const std::string& bytes_;
  size_t at_ = 0;
};

}  // namespace hetcomm
