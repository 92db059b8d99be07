#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "emulated/bootstrap.h"
#include "emulated/calls.h"
#include "emulated/launch_order.h"
#include "emulated/stream.h"

namespace hetcomm::emulated {

// The fields of ncclConfig_t that have an effect here.
struct CommunicatorOptions {
  bool blocking = true;
  bool split_share = false;  // communicators split off this one share its abort flag
  std::string network;       // netName, empty: any
};

int emulated_version();        // of the collective library
bool connects_at_first_use();  // collectives, see the part `lazy` of HETCOMM_EMULATED_HOSTILE

// Ends the process, where the vendors' libraries would use freed memory.
[[noreturn]] void die(const std::string& text);

// Throws Failure if a field has no legal value. `defaults` count for a null `config` only; fields
// that are not set have the library's defaults.
CommunicatorOptions read_config(const Config* config, const CommunicatorOptions& defaults);

// The object behind ncclComm_t. Operations run one at a time, in the order of submit(), on the
// threads of their streams. Thread-safe. Owned by the registry and by operations under way.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(int rank, int size, int device, CommunicatorOptions options)
      : rank_(rank), size_(size), device_(device), options_(std::move(options)) {}

  static std::shared_ptr<Communicator> find(void* handle);  // throws Failure
  void* enroll();                                           // returns the handle

  // Returns at once; state() has the result.
  void connect(const Identity& identity);
  // Runs in the background of this communicator if that does not block. Sets `made` in the end,
  // also after a failure.
  void split(int color, int key, const CommunicatorOptions& options, void** made);
  void submit(std::vector<Call> calls, std::shared_ptr<Stream> stream);
  void finalize();

  int state();           // ccl_in_progress, ccl_success, or the code of a failure
  int wait_for_state();  // state(), once it is not ccl_in_progress
  // Before the calls of a blocking communicator, which connect inside where they must. Hangs by
  // FaultKind::call_hang. False after an abort.
  bool accept(const std::vector<Call>& calls);
  void require_ready();   // throws Failure unless state() is ccl_success
  void wait_submitted();  // until all operations have run or one has failed
  void end(bool abort);   // waits for all operations, or ends them; forgets the handle
  void forget();
  int register_buffer(void* buffer, size_t bytes, void** registration);
  int deregister_buffer(void* registration);
  static bool registered(const void* memory);  // with any communicator

  // Threads inside a call for this communicator.
  void enter() { ++inside_; }
  void leave() { --inside_; }
  int inside() const { return inside_; }

  int rank() const { return rank_; }
  int size() const { return size_; }
  int device() const { return device_; }
  const CommunicatorOptions& options() const { return options_; }

  int add_reduction(const Reduction& reduction);
  bool remove_reduction(int op);
  Reduction reduction(int op, int type);  // throws Failure

 private:
  void in_background(std::function<void()> work);
  struct Prepared {
    Operation operation;  // runs after all earlier ones of the communicator
    Launch launch;
  };
  Prepared take_turn(std::vector<Call> calls);
  Launch launch_of(const std::vector<Call>& calls) const;
  void enqueue(Stream& stream, const Prepared& prepared);
  // Members wait for each other. See the parts `lazy` and `ends` of HETCOMM_EMULATED_HOSTILE. The
  // ticket is for a turn. A meeting without a ticket does nothing. False after an abort.
  struct Meeting {
    std::optional<uint64_t> ticket;
    std::vector<int> peers;
    Label label;
  };
  Meeting to_connect(const std::vector<Call>& calls);
  Meeting to_connect_early();
  Meeting meeting_with(const std::set<int>& peers);  // under the mutex
  bool connect_now(const Meeting& meeting);
  bool rendezvous(const Meeting& meeting);
  void wait_a_while();  // at most until an abort
  void in_turn(uint64_t ticket, const std::function<void()>& work);
  void perform(const std::vector<Call>& calls);
  std::function<void(const std::string&)> reporter();
  std::string choose_network() const;  // throws Failure
  void announce(const std::string& network) const;
  void report(int result, const std::string& text);
  void wait_for_abort();
  template <typename Condition>
  void wait(std::unique_lock<std::mutex>& lock, const Condition& condition);
  void join(Communicator& parent, uint64_t ticket, int color, int key, uint32_t number);

  int rank_, size_;
  const int device_;
  const CommunicatorOptions options_;
  std::shared_ptr<Abort> abort_ = std::make_shared<Abort>();  // perhaps shared, see split_share
  in_addr address_{};                                         // of this member's listener
  uint8_t magic_[16] = {};
  std::unique_ptr<Mesh> mesh_;

  std::mutex mutex_;
  std::condition_variable changed_;
  int state_ = ccl_success;
  int busy_ = 0;         // background threads and the running operation
  uint64_t issued_ = 0;  // tickets for turns
  uint64_t turn_ = 0;
  int64_t performed_ = 0;  // calls
  int64_t accepted_ = 0;   // calls
  uint32_t sequence_ = 0;  // of collectives, for labels
  uint32_t splits_ = 0;
  bool connects_late_ = false;
  std::set<CallKind> connected_kinds_;
  std::set<int> connected_peers_;
  std::atomic<int> inside_{0};
  std::atomic<uint64_t> submitted_{0};
  std::map<int, Reduction> reductions_;
  int next_reduction_ = op_first_own;
  std::map<void*, const void*> buffers_;  // registered, by registration
};

}  // namespace hetcomm::emulated
