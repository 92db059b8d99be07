#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "health/control.h"
#include "health/news.h"
#include "health/rail_watch.h"

namespace hetcomm {

// Watches over one communicator: notices ranks that died or left, calls that differ between ranks
// and operations that stall, tells everybody the first cause and fails this rank's operations with
// it. Owned by the communicator and polled on the progress thread; record() is called by
// submitting threads.
class Health : public Monitor {
 public:
  Health(Executor& executor, std::shared_ptr<RunQueue> queue, int rank, int size,
         const std::string& address);

  const std::string& contact() const { return control_.contact(); }
  // Connects to the neighbours; watching begins.
  void begin(const std::vector<std::string>& contacts, const std::string& secret,
             const Deadline& deadline);
  // Also over the networks of its rails. Before begin().
  void watch_rails(std::unique_ptr<RailWatch> rails) { rails_ = std::move(rails); }
  // With it record() and report_refusal() wait for nobody. Taken before the executor's lock, not
  // after.
  using Lock = std::unique_lock<std::recursive_mutex>;
  Lock try_lock() { return Lock(mutex_, std::try_to_lock); }
  // Remembers a call before it is submitted and compares it with what stalled peers have told.
  void record(const CallDescriptor& call);
  // Remembers that this rank's next call was refused with `why`: the others, who may wait for it,
  // are told the reason.
  void report_refusal(const Status& why);
  // Tells the others that this rank leaves in good order, once.
  void say_goodbye(const Deadline& deadline);
  // Closes all connections; nothing is noticed any more.
  void end();

  void poll() override;
  void failed(const Status& status) override;

 private:
  struct Departure {
    uint64_t calls;  // collectives it took part in
    Clock::time_point at;
    std::string refusal;  // why its next call was refused, or empty
  };
  // Why a rank is missing in a collective.
  struct Refusal {
    Status why;
    bool told = false;
  };

  void on_lost(int peer);
  void on_news(int origin, const News& news);
  void on_malformed(int peer, const std::string& why);
  void tell_failure();
  void look_for_stall();
  void tell_stall(const Run& run);
  void tell_refusal();
  void look_for_departed();
  void look_at_rails();
  void compare(int peer, const CallDescriptor& theirs);
  void note_stall(uint64_t sequence, int rank);
  void fail(const Status& status);
  void deliver();

  Executor& executor_;
  std::shared_ptr<RunQueue> queue_;
  int rank_;
  std::recursive_mutex mutex_;  // everything below
  std::vector<int> unwatched_;  // descriptors made before begin()
  bool begun_ = false, told_failure_ = false, said_goodbye_ = false;
  Status cause_;            // the first failure noticed here
  bool delivered_ = false;  // to the executor
  ControlPlane control_;
  std::unique_ptr<RailWatch> rails_;
  std::map<int, Clock::time_point> lost_;  // connections that ended without a goodbye
  std::map<int, Departure> left_;
  static constexpr size_t kRemembered = 64;
  std::array<CallDescriptor, kRemembered> calls_{};  // by sequence
  uint64_t next_call_ = 0;                           // sequence after the newest recorded
  std::multimap<uint64_t, std::pair<int, CallDescriptor>> ahead_;  // peers' calls not made here yet
  uint64_t stall_told_ = 0;                       // sequence + 1 of the newest stall seen here
  Clock::time_point stall_at_{};                  // when one was last told
  std::map<uint64_t, std::vector<int>> stalled_;  // by sequence: ranks that said they wait
  std::optional<Refusal> refused_;                // of this rank, in place of next_call_
  std::map<uint64_t, Refusal> refusals_;          // of others, by sequence
};

// "all_reduce sum float32 x 1024 (history 3fa9)": equal calls with unlike histories were
// preceded by unlike calls.
std::string describe(const CallDescriptor& call);

}  // namespace hetcomm
