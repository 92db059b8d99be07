#pragma once

#include <chrono>
#include <exception>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "bootstrap/store.h"

namespace hetcomm {

// torch's store as hetcomm's.
class TorchStore : public Store {
 public:
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override;
  // Ctrl-C on the main thread ends this call and every later one.
  std::string get(const std::string& key, const Deadline& deadline) override;
  // Throws the exception of a signal's handler that ended a wait, if any.
  void throw_interrupt() const {
    if (interrupt_) std::rethrow_exception(interrupt_);
  }

 private:
  // False if that takes longer.
  bool wait(const std::string& key, std::chrono::milliseconds time);

  c10::intrusive_ptr<c10d::Store> store_;
  std::exception_ptr interrupt_;
};

}  // namespace hetcomm
