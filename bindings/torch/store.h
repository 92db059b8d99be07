#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/store.h"

namespace hetcomm {

// torch's store as hetcomm's.
class TorchStore : public Store {
 public:
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, const Deadline& deadline) override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace hetcomm
