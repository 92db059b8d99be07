#include "island/ccl/ccl.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <thread>

#include "base/config.h"
#include "base/deadline.h"
#include "core/arguments.h"
#include "core/binding.h"
#include "device/device.h"
#include "island/ccl/lowering.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

Deadline after(double seconds) { return Deadline(timeout_of(Seconds(seconds))); }

// A native island driven by the calling thread, for tests of the engine alone.
class CclDriver {
 public:
  CclDriver(const std::string& vendor, int device, const std::string& unique_id, int member,
            int members, std::vector<int> ranks, const std::string& network,
            CclEnvironment environment, double timeout, double call_bound) {
    CclOptions options;
    read_ccl_settings(options);
    options.call_bound = timeout_of(Seconds(call_bound));
    options.device = Device::open(vendor, device);
    options.unique_id = unique_id;
    options.member = member;
    options.members = members;
    options.ranks = std::move(ranks);
    options.network = network;
    options.environment = std::move(environment);
    options.describe_call = [](const CallDescriptor& call) {
      return "collective " + std::to_string(call.sequence);
    };
    island_ = open_ccl_island(options, after(timeout));
  }

  void register_buffer(uintptr_t address, size_t bytes) {
    island_->register_buffer(pointer(address), bytes);
  }
  void deregister_buffer(uintptr_t address) { island_->deregister_buffer(pointer(address)); }

  void start(IslandCall call) {
    call_ = std::move(call);
    island_->start(0, call_);
  }

  // Whether the started call is in the stream.
  bool launched() const { return island_->event(0) != nullptr; }

  // Makes the same call `repeat` times, one after the other; returns the seconds in start(), and in
  // all.
  std::pair<double, double> repeat(const IslandCall& call, int repeat, double timeout) {
    std::chrono::duration<double> starting{};
    const auto begin = Clock::now();
    for (int i = 0; i < repeat; ++i) {
      const auto now = Clock::now();
      start(call);
      while (!launched() && !progress()) {
      }
      starting += Clock::now() - now;
      if (launched()) wait(timeout);
    }
    return {starting.count(), std::chrono::duration<double>(Clock::now() - begin).count()};
  }

  // One turn; true when the call is done.
  bool progress() {
    Status status;
    const bool done = island_->progress(0, status) == Island::Progress::done;
    check(status);
    return done;
  }

  // Waits until the started call is done. Abandons the call after the timeout.
  void wait(double timeout) {
    for (const Deadline deadline = after(timeout); !progress(); std::this_thread::yield()) {
      if (!deadline.passed()) continue;
      abandon();
      throw Error(Code::timeout, "island: expected the call to end within " +
                                     format_seconds(Seconds(timeout)) +
                                     "; a member did not take part");
    }
  }

  void abandon() { island_->abandon(0); }
  void close() { island_.reset(); }
  std::string describe() const { return island_->describe(); }
  uintptr_t stream() const { return address(island_->stream()); }

 private:
  IslandCall call_;
  std::unique_ptr<Island> island_;
};

const Vendor& row(const std::string& vendor) {
  if (const Vendor* found = find_vendor(vendor)) return *found;
  throw Error(Code::invalid_argument, "expected a vendor with a native library; got " + vendor);
}

void bind_ccl(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  module.def(
      "make_ccl_id",
      [](const std::string& vendor, const CclEnvironment& environment) {
        std::string id;
        {
          py::gil_scoped_release release;
          id = make_ccl_id(row(vendor), environment);
        }
        return py::bytes(id);
      },
      py::arg("vendor"), py::arg("environment") = CclEnvironment());
  module.def(
      "ccl_version", [](const std::string& vendor) { return ccl_version(row(vendor)); },
      py::arg("vendor"), "The collective library of a vendor, \"NCCL 2.28.3 (path)\".");
  module.def(
      "lower_ccl",
      [](const IslandCall& call, int member, int members) {
        std::vector<std::tuple<std::string, uintptr_t, uintptr_t, size_t, int, int, int>> rows;
        for (const nccl::Call& one : nccl::lower(call, member, members)) {
          rows.emplace_back(nccl::name(one.function), address(one.source), address(one.target),
                            one.count, one.type, one.op, one.peer);
        }
        return rows;
      },
      py::arg("call"), py::arg("member"), py::arg("members"),
      "What a member calls: (function, source, target, count, ncclDataType_t, ncclRedOp_t, peer).");
  py::class_<CclDriver>(module, "CclIsland",
                        "One member of a native island, driven by the calling thread.")
      .def(py::init<const std::string&, int, const std::string&, int, int, std::vector<int>,
                    const std::string&, CclEnvironment, double, double>(),
           py::arg("vendor"), py::arg("device"), py::arg("unique_id"), py::arg("member"),
           py::arg("members"), py::arg("ranks") = std::vector<int>(), py::arg("network") = "",
           py::arg("environment") = CclEnvironment(), py::arg("timeout") = 30.0,
           py::arg("call_bound") = 30.0, Release())
      .def("register_buffer", &CclDriver::register_buffer, py::arg("address"), py::arg("bytes"))
      .def("deregister_buffer", &CclDriver::deregister_buffer, py::arg("address"))
      .def("launched", &CclDriver::launched)
      .def("repeat", &CclDriver::repeat, py::arg("call"), py::arg("repeat"),
           py::arg("timeout") = 30.0, Release())
      .def("start", &CclDriver::start, py::arg("call"), Release())
      .def("progress", &CclDriver::progress, Release())
      .def("wait", &CclDriver::wait, py::arg("timeout") = 30.0, Release())
      .def("abandon", &CclDriver::abandon, Release())
      .def("close", &CclDriver::close, Release())
      .def("describe", &CclDriver::describe)
      .def_property_readonly("stream", &CclDriver::stream);
}

const Binding ccl_binding(30, bind_ccl);

}  // namespace
}  // namespace hetcomm
