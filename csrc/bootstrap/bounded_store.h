#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/store.h"

namespace hetcomm {

// A part of a group's set-up: any store, with a bound for each operation. A thread calls the store,
// and is given up where the store stands still. An operation ends at most half a second after its
// deadline. Throws StoreError where the store fails or does not answer. Used by one thread.
class BoundedStore : public Store {
 public:
  // `look`: called now and then while an operation waits, on the caller's thread. What it throws
  // ends the operation and every later one; see throw_interrupt().
  BoundedStore(std::shared_ptr<Store> store, std::function<void()> look);
  ~BoundedStore() override;

  // Called beside `look`. An Error that it throws ends the operation alone.
  void watch(std::function<void()> watch) { watch_ = std::move(watch); }
  // Throws what `look` has thrown, if anything.
  void throw_interrupt() const {
    if (interrupt_) std::rethrow_exception(interrupt_);
  }

  void set(const std::string& key, const std::string& value, const Deadline& deadline) override;
  std::string get(const std::string& key, const Deadline& deadline) override;
  void remove(const std::vector<std::string>& keys) override;
  void leave_will(const std::string& key, const std::string& value,
                  const Deadline& deadline) override;
  void withdraw_will(const std::string& key, const Deadline& deadline) override;
  std::string place() const override;

 private:
  struct Operation;
  class Caller;
  std::string perform(std::function<std::string(Store&, const Deadline&)> call,
                      const Deadline& deadline, bool waits);
  void look();

  const std::shared_ptr<Caller> caller_;
  const std::function<void()> look_;
  std::function<void()> watch_;
  std::exception_ptr interrupt_;
};

}  // namespace hetcomm
