#pragma once

#include <string>

#include "bootstrap/store.h"

namespace hetcomm {

// A part of a group's set-up: a store that others may read and write. With a job key every value
// carries the HMAC of its key and bytes, so no value of a foreign program passes for a rank's.
// Without a job key values stay as they are. Used by one thread.
class SealedStore : public Store {
 public:
  static constexpr size_t kMostBytes = 64 << 20;  // of a value

  // Reads the job key; throws Error.
  SealedStore(Store& store, int rank);

  bool sealing() const { return !key_.empty(); }
  const std::string& job_key() const { return job_key_; }
  // From now on seals are made of this key, which only this set-up has.
  void use_group_key(const std::string& group_key);

  void set(const std::string& key, const std::string& value, const Deadline& deadline) override;
  // Throws Error(invalid_argument) on a value without a right seal; the error names who set it.
  std::string get(const std::string& key, const Deadline& deadline) override;
  void leave_will(const std::string& key, const std::string& value,
                  const Deadline& deadline) override;
  void withdraw_will(const std::string& key, const Deadline& deadline) override {
    store_.withdraw_will(key, deadline);
  }
  std::string place() const override { return store_.place(); }
  void remove(const std::vector<std::string>& keys) override { store_.remove(keys); }
  // All keys that this rank has set, in order.
  const std::vector<std::string>& keys() const { return keys_; }

 private:
  std::string sealed(const std::string& key, const std::string& value) const;
  std::string seal_of(const std::string& key, const std::string& origin,
                      const std::string& value) const;
  std::string open(const std::string& key, const std::string& sealed) const;

  Store& store_;
  const std::string origin_;
  const int rank_;
  const std::string job_key_;
  std::string key_;  // of seals; empty without a job key
  std::vector<std::string> keys_;
};

// The key of a group's control connections: of the job key, and of new random words of all ranks.
std::string make_group_key(const std::string& job_key, const std::string& words);

}  // namespace hetcomm
