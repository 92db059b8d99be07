#include "bootstrap/bounded_store.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/start_thread.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

constexpr auto kAnswerBound = 500ms;  // for the answer of an operation, after its deadline
constexpr std::chrono::nanoseconds kLookInterval = 100ms;
// A question that nobody waits for any more ends within this time, if the store answers.
constexpr std::chrono::nanoseconds kLongestQuestion = 1s;
constexpr std::chrono::nanoseconds kRemoval = 1s;
constexpr auto kImprecision = 20ms;  // of a store's timeout

}  // namespace

struct BoundedStore::Operation {
  std::function<std::string(Store&, const Deadline&)> call;
  Deadline deadline;
  bool waits;  // repeats the call until the deadline
  bool given_up = false, over = false;
  std::string result;
  Status failure;
  bool of_store = false;  // the failure: not a key that no rank has set
};

// Calls the store on a thread of its own, one operation at a time. The thread starts with the first
// operation. It ends with the BoundedStore, or once the store answers.
class BoundedStore::Caller : public std::enable_shared_from_this<Caller> {
 public:
  explicit Caller(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  const Store& store() const { return *store_; }
  // False if an operation that was given up has not ended by then.
  bool begin(const std::shared_ptr<Operation>& operation, std::chrono::nanoseconds bound) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, bound, [&] { return !current_; })) return false;
    if (!started_) {
      start_thread("hetcomm-store", [self = shared_from_this()] { self->run(); }).detach();
      started_ = true;
    }
    current_ = operation;
    changed_.notify_all();
    return true;
  }
  bool over_within(const Operation& operation, std::chrono::nanoseconds bound) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, bound, [&] { return operation.over; });
  }
  void give_up(Operation& operation) {
    std::lock_guard lock(mutex_);
    operation.given_up = true;
  }
  void end() {
    std::lock_guard lock(mutex_);
    ended_ = true;
    if (current_) current_->given_up = true;
    changed_.notify_all();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return current_ || ended_; });
      if (!current_) return;
      const auto operation = current_;
      lock.unlock();
      perform(*operation);
      lock.lock();
      operation->over = true;
      current_.reset();
      changed_.notify_all();
    }
  }
  void perform(Operation& operation) {
    while (true) {
      const auto left = operation.deadline.left();
      const Deadline turn(operation.waits ? std::min(left, kLongestQuestion) : left);
      try {
        operation.result = operation.call(*store_, turn);
        return;
      } catch (const Error& error) {
        const bool in_time = error.status().code() == Code::timeout && turn.left() < kImprecision;
        std::lock_guard lock(mutex_);
        const bool last = operation.given_up || operation.deadline.passed();
        if (operation.waits && in_time && !last) continue;
        operation.failure = error.status();
        operation.of_store = !operation.waits || !in_time;
        return;
      } catch (const std::exception& error) {
        operation.failure = Status(Code::transport, error.what());
        operation.of_store = true;
        return;
      }
    }
  }

  const std::shared_ptr<Store> store_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Operation> current_;
  bool started_ = false, ended_ = false;
};

BoundedStore::BoundedStore(std::shared_ptr<Store> store, std::function<void()> look)
    : caller_(std::make_shared<Caller>(std::move(store))), look_(std::move(look)) {}

BoundedStore::~BoundedStore() { caller_->end(); }

void BoundedStore::look() {
  try {
    if (look_) look_();
  } catch (const std::exception& error) {
    interrupt_ = std::current_exception();
    const std::string text = error.what();
    throw StoreError(Code::transport, "interrupted: " + text.substr(0, text.find('\n')));
  }
  if (watch_) watch_();
}

std::string BoundedStore::perform(std::function<std::string(Store&, const Deadline&)> call,
                                  const Deadline& deadline, bool waits) {
  if (interrupt_) throw StoreError(Code::transport, "interrupted");
  const auto operation = std::make_shared<Operation>(Operation{std::move(call), deadline, waits});
  const Deadline bound(deadline.left() + kAnswerBound);
  const auto turn = [&] { return std::min(bound.left(), kLookInterval); };
  bool begun = false;
  try {
    while (!(begun = caller_->begin(operation, turn())) && !bound.passed()) look();
    while (begun && !caller_->over_within(*operation, turn()) && !bound.passed()) look();
  } catch (...) {
    caller_->give_up(*operation);
    throw;
  }
  if (!begun || !caller_->over_within(*operation, 0ns)) {
    caller_->give_up(*operation);
    throw StoreError(Code::timeout,
                     place() +
                         " does not answer; see that the process that serves it runs and is "
                         "not stopped, and that this host reaches it");
  }
  if (operation->of_store) throw StoreError(operation->failure);
  check(operation->failure);
  return operation->result;
}

void BoundedStore::set(const std::string& key, const std::string& value, const Deadline& deadline) {
  perform(
      [=](Store& store, const Deadline& bound) {
        store.set(key, value, bound);
        return std::string();
      },
      deadline, false);
}

std::string BoundedStore::get(const std::string& key, const Deadline& deadline) {
  return perform([=](Store& store, const Deadline& bound) { return store.get(key, bound); },
                 deadline, true);
}

void BoundedStore::remove(const std::vector<std::string>& keys) {
  perform(
      [=](Store& store, const Deadline&) {
        store.remove(keys);
        return std::string();
      },
      Deadline(kRemoval), false);
}

void BoundedStore::leave_will(const std::string& key, const std::string& value,
                              const Deadline& deadline) {
  perform(
      [=](Store& store, const Deadline& bound) {
        store.leave_will(key, value, bound);
        return std::string();
      },
      deadline, false);
}

void BoundedStore::withdraw_will(const std::string& key, const Deadline& deadline) {
  perform(
      [=](Store& store, const Deadline& bound) {
        store.withdraw_will(key, bound);
        return std::string();
      },
      deadline, false);
}

std::string BoundedStore::place() const { return caller_->store().place(); }

}  // namespace hetcomm
