#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "bootstrap/store.h"

namespace hetcomm {

// A store of torch's.
class TorchStore : public Store {
 public:
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override;
  // A signal's exception on the main thread, such as Ctrl-C, ends this call and every later one.
  std::string get(const std::string& key, const Deadline& deadline) override;
  // Throws that exception, if there is one.
  void throw_interrupt() const {
    if (interrupt_) std::rethrow_exception(interrupt_);
  }

 private:
  class Question;
  void await_answer(std::chrono::nanoseconds bound);

  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<Question> unanswered_;  // given up
  std::exception_ptr interrupt_;
};

}  // namespace hetcomm
