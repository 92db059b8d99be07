#include "torch/store.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "base/status.h"
#include "torch/interrupt.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

// Between two questions for a key.
constexpr std::chrono::milliseconds kShortestPause = 1ms, kLongestPause = 200ms;
constexpr auto kAnswerBound = 500ms;  // of a question that nobody waits for any more

}  // namespace

// A key that a thread asks for. torch's check() and get() have no bound, and wait() has none where
// the server stands still. wait() also writes warnings into the log while a key is not set.
class TorchStore::Question {
 public:
  Question(c10::intrusive_ptr<c10d::Store> store, std::string key)
      : store_(std::move(store)), key_(std::move(key)) {}

  void ask() {
    const auto begin = Clock::now();
    std::unique_lock lock(mutex_);
    while (!over_) {
      lock.unlock();
      std::optional<std::vector<uint8_t>> value;
      std::string error;
      try {
        if (store_->check({key_})) value = store_->get(key_);
      } catch (const std::exception& failure) {
        error = failure.what();
      }
      const Clock::duration waited = Clock::now() - begin;
      lock.lock();
      over_ = over_ || value || !error.empty();
      value_ = std::move(value);
      error_ = std::move(error);
      changed_.notify_all();
      if (over_) break;
      changed_.wait_for(lock,
                        std::clamp<Clock::duration>(waited / 10, kShortestPause, kLongestPause));
    }
    ended_ = true;
    changed_.notify_all();
  }
  bool over_within(std::chrono::nanoseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [&] { return over_; });
  }
  // Whether the thread has ended. Without an answer of the store the thread stays.
  bool ended_within(std::chrono::nanoseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [&] { return ended_; });
  }
  void give_up() {
    std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  std::string value() {
    std::lock_guard lock(mutex_);
    if (!error_.empty()) throw std::runtime_error(error_);
    if (!value_) throw std::runtime_error("no rank has set it");
    return std::string(value_->begin(), value_->end());
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string key_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false, ended_ = false;
  std::optional<std::vector<uint8_t>> value_;
  std::string error_;
};

TorchStore::~TorchStore() {
  if (question_) question_->give_up();
}

// A thread that waits for an answer holds the store's lock.
void TorchStore::end_question() {
  if (!question_) return;
  question_->give_up();
  if (!question_->ended_within(kAnswerBound)) throw std::runtime_error("its server stands still");
  question_.reset();
}

// Calls signal handlers meanwhile.
void TorchStore::wait(const std::function<bool(std::chrono::nanoseconds)>& done_within,
                      const Deadline& deadline) {
  GroupReference no_group(nullptr);  // bootstrap reports the interrupt to the other ranks
  try {
    wait_interruptibly(done_within, deadline.left(), no_group, [] { return std::string(); });
  } catch (const std::exception&) {
    interrupt_ = std::current_exception();
    throw;
  }
}

void TorchStore::set(const std::string& key, const std::string& value) {
  try {
    end_question();
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  } catch (const std::exception& error) {
    throw Error(Code::transport, std::string("the store cannot be written: ") + error.what() +
                                     "; see that rank 0, which serves it, still runs");
  }
}

std::string TorchStore::get(const std::string& key, const Deadline& deadline) {
  try {
    throw_interrupt();
    if (question_) wait([&](auto time) { return question_->ended_within(time); }, deadline);
    end_question();
    question_ = std::make_shared<Question>(store_, key);
    std::thread([question = question_] { question->ask(); }).detach();
    wait([&](auto time) { return question_->over_within(time); }, deadline);
    const auto asked = question_;
    end_question();
    return asked->value();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw Error(deadline.passed() ? Code::timeout : Code::transport,
                "the store has no answer: " + text.substr(0, text.find('\n')));
  }
}

}  // namespace hetcomm
