#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "bootstrap/store.h"

namespace hetcomm {

// A store of torch's.
class TorchStore : public Store {
 public:
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  ~TorchStore() override;

  void set(const std::string& key, const std::string& value) override;
  // A signal's exception on the main thread, such as Ctrl-C, ends this call and every later one.
  std::string get(const std::string& key, const Deadline& deadline) override;
  // Throws that exception, if there is one.
  void throw_interrupt() const {
    if (interrupt_) std::rethrow_exception(interrupt_);
  }

 private:
  class Question;
  void end_question();
  void wait(const std::function<bool(std::chrono::nanoseconds)>& done_within,
            const Deadline& deadline);

  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<Question> question_;  // whose thread may still run
  std::exception_ptr interrupt_;
};

}  // namespace hetcomm
