#include <poll.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>

#include "base/config.h"
#include "base/deadline.h"
#include "core/binding.h"
#include "island/shm/shm.h"
#include "plan/step_kind.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

// An island driven by the calling thread, for tests and measurements of the engine alone. Members
// are threads of one process, or processes. With `events`, one eventfd per member, they sleep.
class IslandDriver {
 public:
  IslandDriver(const std::string& name, int member, int members, int lanes, std::vector<int> ranks,
               std::vector<int> events, double timeout)
      : events_(std::move(events)), member_(member), calls_(lanes) {
    ShmOptions options;
    options.name = name;
    options.member = member;
    options.members = members;
    options.lanes = lanes;
    options.ranks = std::move(ranks);
    options.describe_call = [](const CallDescriptor& call) {
      return "collective " + std::to_string(call.collective) + " x " + std::to_string(call.count);
    };
    if (!events_.empty()) {
      options.wake = [this](int peer) { eventfd_write(events_[peer], 1); };
    }
    island_ = open_shm_island(options, Deadline(timeout_of(Seconds(timeout))));
  }

  void start(int lane, IslandCall call) {
    calls_.at(lane) = std::move(call);
    island_->start(lane, calls_[lane]);
  }

  // One turn; true when the call is done.
  bool progress(int lane) {
    Status status;
    const bool done = island_->progress(lane, status) == Island::Progress::done;
    check(status);
    return done;
  }

  // Waits until the started calls of these lanes are done. Abandons the calls after the timeout.
  void wait(std::vector<int> lanes, double timeout) {
    const Deadline deadline(timeout_of(Seconds(timeout)));
    for (int idle = 0; !lanes.empty();) {
      if (turn(lanes)) {
        idle = 0;
        continue;
      }
      if (++idle % 64 != 0) continue;
      if (deadline.passed()) {
        for (int lane : lanes) island_->abandon(lane);
        throw Error(Code::timeout, "island: expected the call to end within " +
                                       format_seconds(Seconds(timeout)) +
                                       "; a member did not take part");
      }
      if (events_.empty()) {
        std::this_thread::yield();
      } else {
        sleep(lanes, deadline);
      }
    }
  }

  // Makes the same call `repeat` times; returns seconds in all.
  double repeat(int lane, IslandCall call, int repeat, double timeout) {
    const auto begin = Clock::now();
    for (int i = 0; i < repeat; ++i) {
      call.descriptor.sequence += 1;
      island_->start(lane, call);
      wait({lane}, timeout);
    }
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  void abandon(int lane) { island_->abandon(lane); }
  std::string describe() const { return island_->describe(); }
  int64_t direct_calls() const { return island_->direct_calls(); }

 private:
  bool turn(std::vector<int>& lanes) {
    bool advanced = false;
    std::erase_if(lanes, [&](int lane) {
      Status status;
      const Island::Progress progress = island_->progress(lane, status);
      check(status);
      advanced |= progress == Island::Progress::advanced || progress == Island::Progress::done;
      return progress == Island::Progress::done;
    });
    return advanced;
  }

  void sleep(std::vector<int>& lanes, const Deadline& deadline) {
    island_->set_sleeping(true);
    if (!turn(lanes)) {
      pollfd mine{events_[member_], POLLIN, 0};
      if (poll(&mine, 1, static_cast<int>(deadline.left_ms().count())) > 0) {
        eventfd_t count;
        eventfd_read(events_[member_], &count);
      }
    }
    island_->set_sleeping(false);
  }

  const std::vector<int> events_;
  const int member_;
  std::vector<IslandCall> calls_;
  std::unique_ptr<Island> island_;
};

// An allocation as Python sees it: memory by the buffer protocol.
struct SharedMemory {
  std::shared_ptr<void> memory;
  size_t bytes;
};

SharedMemory allocate(const py::int_& asked) {
  const Py_ssize_t bytes = PyLong_AsSsize_t(asked.ptr());
  if (bytes < 0) {
    PyErr_Clear();
    const bool negative = asked < py::int_(0);
    throw Error(negative ? Code::invalid_argument : Code::vendor,
                "shared allocation: expected 0 to 2^63 - 1 bytes; got " +
                    py::str(asked).cast<std::string>() +
                    (negative ? "" : "; allocate less, or use ordinary memory"));
  }
  py::gil_scoped_release release;
  return {allocate_shared(static_cast<size_t>(bytes)), static_cast<size_t>(bytes)};
}

IslandPiece piece(int from, int to, uintptr_t source, uintptr_t target, int64_t count) {
  return {from, to, reinterpret_cast<const std::byte*>(source),
          reinterpret_cast<std::byte*>(target), count};
}

void bind_island(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<IslandCall>(module, "IslandCall")
      .def(py::init(
               [](const StepKind& kind, Dtype dtype, ReduceOp op, uint64_t sequence,
                  const std::vector<std::tuple<int, int, uintptr_t, uintptr_t, int64_t>>& pieces,
                  const std::vector<std::pair<int64_t, int64_t>>& places, double factor) {
                 IslandCall call{kind.reduces, kind.to_all, dtype, op, {}, {}};
                 for (const auto& [from, to, source, target, count] : pieces) {
                   call.pieces.push_back(piece(from, to, source, target, count));
                   call.descriptor.count += static_cast<uint64_t>(count);
                 }
                 for (size_t i = 0; i < places.size(); ++i) {
                   call.pieces.at(i).source_place = places[i].first;
                   call.pieces.at(i).target_place = places[i].second;
                 }
                 call.descriptor.sequence = sequence;
                 call.descriptor.collective =
                     static_cast<uint16_t>(2 * !kind.reduces + !kind.to_all);
                 call.descriptor.dtype = static_cast<uint8_t>(dtype);
                 call.descriptor.op = static_cast<uint8_t>(op);
                 call.descriptor.factor = factor;
                 return call;
               }),
           py::arg("kind"), py::arg("dtype"), py::arg("op"), py::arg("sequence"), py::arg("pieces"),
           py::arg("places") = std::vector<std::pair<int64_t, int64_t>>(), py::arg("factor") = 1.0,
           "kind: one of an island; pieces: (from, to, source address, target address, count) "
           "each; places: (source, target) each, or none.");
  module.def(
      "create_shm_segment",
      [](int members, int lanes, size_t slot_bytes, bool across_namespaces) {
        ShmOptions options;
        options.members = members;
        options.lanes = lanes;
        options.slot_bytes = slot_bytes;
        options.across_namespaces = across_namespaces;
        return create_shm_segment(options);
      },
      py::arg("members"), py::arg("lanes") = 4, py::arg("slot_bytes") = 0,
      py::arg("across_namespaces") = false);
  py::class_<SharedMemory>(module, "SharedMemory", py::buffer_protocol(),
                           "Zeros that all ranks of this host can read.")
      .def(py::init(&allocate), py::arg("bytes"))
      .def_buffer([](SharedMemory& self) {
        return py::buffer_info(static_cast<uint8_t*>(self.memory.get()),
                               static_cast<py::ssize_t>(self.bytes));
      });
  module.def("remove_shm_segment", &remove_shm_segment, py::arg("name"));
  py::class_<IslandDriver>(module, "ShmIsland",
                           "One member of a shared-memory island, driven by the calling thread.")
      .def(
          py::init<const std::string&, int, int, int, std::vector<int>, std::vector<int>, double>(),
          py::arg("name"), py::arg("member"), py::arg("members"), py::arg("lanes") = 4,
          py::arg("ranks") = std::vector<int>(), py::arg("events") = std::vector<int>(),
          py::arg("timeout") = 30.0, Release())
      .def("start", &IslandDriver::start, py::arg("lane"), py::arg("call"), Release())
      .def("progress", &IslandDriver::progress, py::arg("lane"), Release())
      .def("wait", &IslandDriver::wait, py::arg("lanes"), py::arg("timeout") = 30.0, Release())
      .def("repeat", &IslandDriver::repeat, py::arg("lane"), py::arg("call"), py::arg("repeat"),
           py::arg("timeout") = 30.0, Release())
      .def("abandon", &IslandDriver::abandon, py::arg("lane"))
      .def("describe", &IslandDriver::describe)
      .def("direct_calls", &IslandDriver::direct_calls);
}

const Binding island_binding(30, bind_island);

}  // namespace
}  // namespace hetcomm
