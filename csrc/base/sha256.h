#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hetcomm {

// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), 32 bytes each. Written here because no library
// with these functions is certain to be on a machine. For the few bytes of set-up and news, not for
// data. Thread-safe.
constexpr size_t kDigestBytes = 32;

std::string sha256(std::string_view message);
std::string hmac_sha256(std::string_view key, std::string_view message);

// Takes the same time wherever the texts differ, so that the time tells nothing about a secret.
bool equal_in_constant_time(std::string_view one, std::string_view other);

// Unpredictable bytes of the kernel.
std::string random_bytes(size_t count);

}  // namespace hetcomm
