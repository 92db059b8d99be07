// The protocols of hetcomm's flags in shared memory, for a model checker of C++'s memory model.
//
//     protocols PROTOCOL ORDER...
//
// runs one protocol in many interleavings. A load may return any value that its order permits, so a
// weakly ordered processor shows nothing else. test_memory_orders.py takes the orders from the
// sources. Ends with 1 and the history if an interleaving breaks the protocol.
#include <cstring>
#include <iostream>
#include <relacy/relacy.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::vector<rl::memory_order> orders;

// "none" leaves out a fence.
rl::memory_order order_of(const std::string& name) {
  const char* names[] = {"relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst", "none"};
  for (int order = 0; order < 7; ++order) {
    if (name == names[order]) return static_cast<rl::memory_order>(order);
  }
  throw std::invalid_argument("expected a memory order; got " + name);
}

void fence(rl::memory_order order) {
  if (order <= rl::mo_seq_cst) rl::atomic_thread_fence(order, $);
}

// Lane::publish(), read(), has_room(), has_arrived(): two members with rings of two slots.
struct Slots : rl::test_suite<Slots, 2> {
  static constexpr unsigned kDepth = 2, kRounds = 5;
  struct Slot {
    rl::atomic<unsigned> round;
    rl::var<unsigned> finished, data;
  };
  Slot slots[2][kDepth];
  rl::atomic<unsigned> finished[2];

  void before() {
    for (unsigned member = 0; member < 2; ++member) {
      finished[member]($) = 0;
      for (Slot& slot : slots[member]) {
        slot.round($) = 0;
        slot.finished($) = 0;
        slot.data($) = 0;
      }
    }
  }

  void thread(unsigned member) {
    const unsigned peer = 1 - member;
    unsigned known = 0, published = 0, read = 0;
    while (read < kRounds) {
      const unsigned needed = published < kDepth ? 0 : published - kDepth + 1;
      if (published < kRounds && known < needed) known = finished[peer]($).load(orders[3]);
      if (published < kRounds && known >= needed) {
        Slot& mine = slots[member][published % kDepth];
        mine.data($) = 100 * member + published;
        mine.finished($) = read;
        mine.round($).store(++published, orders[0]);
      }
      Slot& theirs = slots[peer][read % kDepth];
      if (read < published && theirs.round($).load(orders[1]) > read) {
        known = theirs.finished($);
        RL_ASSERT(theirs.data($) == 100 * peer + read);
        finished[member]($).store(++read, orders[2]);
      } else {
        rl::yield(1, $);
      }
    }
  }
};

// Doorbell: member 0 acts, member 1 sleeps.
struct Bell : rl::test_suite<Bell, 2> {
  rl::atomic<unsigned> round, awaited;
  bool slept = false, woken = false;

  void before() {
    round($) = 0;
    awaited($) = 0;
    slept = woken = false;
  }
  void thread(unsigned member) {
    if (member == 0) {
      round($).store(1, rl::mo_release);
      fence(orders[1]);
      if (awaited($).load(rl::mo_relaxed) != 0) {
        woken = awaited($).exchange(0, rl::mo_acq_rel) != 0;
      }
    } else {
      awaited($).store(1, rl::mo_relaxed);
      fence(orders[0]);
      slept = round($).load(rl::mo_acquire) == 0;
    }
  }
  void after() { RL_ASSERT(!slept || woken); }
};

// Completion::announce() and Executor::sleep(): thread 0 ends a run, thread 1 wants to sleep.
struct End : rl::test_suite<End, 2> {
  rl::atomic<unsigned> done, sleepers;
  rl::var<unsigned> status;
  bool slept = false, woken = false;

  void before() {
    done($) = 0;
    sleepers($) = 0;
    status($) = 0;
    slept = woken = false;
  }
  void thread(unsigned number) {
    if (number == 0) {
      status($) = 1;
      done($).store(1, orders[0]);
      woken = sleepers($).load(orders[2]) > 0;
    } else {
      sleepers($).fetch_add(1, rl::mo_seq_cst);
      slept = done($).load(orders[1]) == 0;
      if (!slept) RL_ASSERT(status($) == 1);
    }
  }
  void after() { RL_ASSERT(!slept || woken); }
};

// Completion::announce() and when_done(): the listener is called exactly once.
struct Listener : rl::test_suite<Listener, 2> {
  rl::atomic<unsigned> done, watched;
  rl::mutex mutex;
  rl::var<unsigned> listeners;
  unsigned calls = 0;

  void before() {
    done($) = 0;
    watched($) = 0;
    listeners($) = 0;
    calls = 0;
  }
  void thread(unsigned number) {
    if (number == 0) {
      done($).store(1, orders[0]);
      if (watched($).load(orders[2]) == 0) return;
      mutex.lock($);
      calls += listeners($);
      listeners($) = 0;
      mutex.unlock($);
    } else {
      watched($).store(1, orders[1]);
      mutex.lock($);
      const bool over = done($).load(orders[3]) != 0;
      if (!over) listeners($) = 1;
      mutex.unlock($);
      if (over) ++calls;
    }
  }
  void after() { RL_ASSERT(calls == 1); }
};

// Executor::end_waiting() and submit(): thread 0 stops waiting, thread 1 submits a run. One of them
// must wake the progress thread.
struct Handing : rl::test_suite<Handing, 2> {
  rl::atomic<unsigned> waiters, runs;
  bool woken = false;

  void before() {
    waiters($) = 1;
    runs($) = 0;
    woken = false;
  }
  void thread(unsigned number) {
    if (number == 0) {
      waiters($).fetch_sub(1, rl::mo_seq_cst);
      if (runs($).load(orders[0]) > 0 && waiters($).load(orders[1]) == 0) woken = true;
    } else {
      runs($).fetch_add(1, rl::mo_seq_cst);
      if (waiters($).load(orders[1]) == 0) woken = true;
    }
  }
  void after() { RL_ASSERT(woken); }
};

template <class Protocol>
bool holds() {
  rl::test_params parameters;
  parameters.iteration_count = 50'000;
  std::ostringstream progress;
  parameters.progress_stream = &progress;
  parameters.output_stream = &std::cout;
  return rl::simulate<Protocol>(parameters);
}

}  // namespace

int main(int count, char** words) {
  const std::string protocol = count > 1 ? words[1] : "";
  for (int i = 2; i < count; ++i) orders.push_back(order_of(words[i]));
  if (protocol == "slots") return holds<Slots>() ? 0 : 1;
  if (protocol == "bell") return holds<Bell>() ? 0 : 1;
  if (protocol == "end") return holds<End>() ? 0 : 1;
  if (protocol == "listener") return holds<Listener>() ? 0 : 1;
  if (protocol == "handing") return holds<Handing>() ? 0 : 1;
  return 2;
}
