#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "bootstrap/store.h"

namespace hetcomm {

// A store of torch's. Its operations have no bound where the server stands still; see BoundedStore.
class TorchStore : public Store {
 public:
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value, const Deadline& deadline) override;
  std::string get(const std::string& key, const Deadline& deadline) override;
  void remove(const std::vector<std::string>& keys) override;
  std::string place() const override;

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace hetcomm
