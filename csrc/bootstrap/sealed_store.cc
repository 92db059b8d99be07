#include "bootstrap/sealed_store.h"

#include <algorithm>

#include "base/config.h"
#include "base/job_key.h"
#include "base/packing.h"
#include "base/sha256.h"
#include "base/text.h"

namespace hetcomm {
namespace {

// The beginning of a sealed value: this text, the seal, and after its length who set the value.
const std::string kMark = "hetcomm-sealed-1\n";
const char* const kRemedy =
    "give every rank of the job the same HETCOMM_JOB_KEY_FILE (or HETCOMM_JOB_KEY), and see who "
    "else can write to the store";

// The rank in "member/3"; -1 without one.
int rank_in(const std::string& key) {
  const std::string number = key.substr(key.rfind('/') + 1);
  const bool digits =
      !number.empty() && number.size() < 10 && std::all_of(number.begin(), number.end(), is_digit);
  return digits ? std::stoi(number) : -1;
}

std::string printable(std::string text) {
  for (char& one : text) {
    if (!is_printable(one)) one = '?';
  }
  return text.substr(0, 300);
}

}  // namespace

SealedStore::SealedStore(Store& store, int rank)
    : store_(store),
      origin_("rank " + std::to_string(rank) + " on host " + host_name()),
      rank_(rank),
      job_key_(hetcomm::job_key()),
      key_(job_key_) {}

void SealedStore::use_group_key(const std::string& group_key) {
  if (sealing()) key_ = group_key;
}

std::string SealedStore::seal_of(const std::string& key, const std::string& origin,
                                 const std::string& value) const {
  return hmac_sha256(key_, Packer().put("store value").put(key).put(origin).put(value).take());
}

std::string SealedStore::sealed(const std::string& key, const std::string& value) const {
  if (!sealing()) return value;
  return kMark + seal_of(key, origin_, value) + Packer().put(origin_).take() + value;
}

void SealedStore::set(const std::string& key, const std::string& value, const Deadline& deadline) {
  keys_.push_back(key);
  store_.set(key, sealed(key, value), deadline);
}

void SealedStore::leave_will(const std::string& key, const std::string& value,
                             const Deadline& deadline) {
  store_.leave_will(key, sealed(key, value), deadline);
}

std::string SealedStore::get(const std::string& key, const Deadline& deadline) {
  const std::string found = store_.get(key, deadline);
  try {
    return open(key, found);
  } catch (const Error& error) {
    throw Error(Status(Code::invalid_argument,
                       "the store's value \"" + key + "\": " + error.status().details().message,
                       rank_, rank_in(key)));
  }
}

std::string SealedStore::open(const std::string& key, const std::string& found) const {
  if (found.size() > kMostBytes) {
    throw Error(Code::invalid_argument, "expected at most " + format_bytes(kMostBytes) + ", got " +
                                            format_bytes(static_cast<int64_t>(found.size())) +
                                            "; see who else can write to the store");
  }
  const bool sealed = found.starts_with(kMark);
  if (!sealed && !sealing()) return found;
  if (!sealed) {
    throw Error(Code::invalid_argument,
                "expected a seal of the job key that " + origin_ +
                    " has, got none: the rank that set it has no job key, or another program set "
                    "it; " +
                    kRemedy);
  }
  if (found.size() < kMark.size() + kDigestBytes) {
    throw Error(Code::invalid_argument,
                std::string("expected a seal, got a part of one; ") + kRemedy);
  }
  const std::string seal = found.substr(kMark.size(), kDigestBytes);
  const std::string rest = found.substr(kMark.size() + kDigestBytes);
  Unpacker from(rest);
  const std::string origin = from.text();
  if (!sealing()) {
    throw Error(Code::invalid_argument,
                printable(origin) + " has a job key, and " + origin_ + " has none; " + kRemedy);
  }
  const std::string value = rest.substr(sizeof(uint64_t) + origin.size());
  if (!equal_in_constant_time(seal, seal_of(key, origin, value))) {
    throw Error(Code::invalid_argument,
                "expected a seal of the job key that " + origin_ + " has, got another, by " +
                    printable(origin) +
                    ": its job key differs, or the value was changed in the store; " + kRemedy);
  }
  return value;
}

std::string make_group_key(const std::string& job_key, const std::string& words) {
  return hmac_sha256(job_key, "group key" + words);
}

}  // namespace hetcomm
