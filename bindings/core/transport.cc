#include <poll.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "base/deadline.h"
#include "core/binding.h"
#include "transport/striped/striped.h"
#include "transport/transports.h"
#include "transport/ucx/source_filter.h"
#include "transport/ucx/ucx.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

// A Request together with the Python buffer it refers to.
struct BoundRequest {
  Request request;
  py::buffer_info buffer;
};
using SharedRequest = std::shared_ptr<BoundRequest>;

// A transport and its pending requests, which Python may drop before they are done.
struct BoundTransport {
  std::vector<SharedRequest> pending;
  Transports transports;  // destroyed before the requests
  Transport* const transport;

  explicit BoundTransport(const TransportId& id)
      : transports(Status()), transport(&transports.get(id)) {}

  SharedRequest keep(py::buffer_info buffer) {
    pending.push_back(std::make_shared<BoundRequest>(BoundRequest{{}, std::move(buffer)}));
    return pending.back();
  }
  bool progress() {
    bool moved = transports.progress();
    std::erase_if(pending, [](const SharedRequest& each) { return each->request.done; });
    return moved;
  }
  // Spins briefly, then sleeps on the event descriptor. False if a request is not done in time.
  bool wait(const std::vector<SharedRequest>& requests, double seconds) {
    const Deadline deadline(timeout_of(Seconds(seconds)));
    for (int idle = 0;;) {
      idle = progress() ? 0 : idle + 1;
      if (std::all_of(requests.begin(), requests.end(),
                      [](const SharedRequest& each) { return each->request.done; })) {
        return true;
      }
      if (deadline.passed()) return false;
      if (idle > 100 && transport->prepare_to_sleep()) {
        pollfd event{transport->event_fd(), POLLIN, 0};
        auto most = std::min(deadline.left_ms(), std::chrono::milliseconds(100));
        py::gil_scoped_release release;
        poll(&event, 1, static_cast<int>(most.count()));
      }
      if (idle > 0 && PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
  }
};

struct BoundLink {
  std::shared_ptr<BoundTransport> transport;  // outlives the link
  std::unique_ptr<Link> link;
};

void bind_transport(py::module_& module) {
  py::class_<BoundRequest, SharedRequest>(module, "Request")
      .def_property_readonly("done", [](const BoundRequest& self) { return self.request.done; })
      .def_property_readonly("bytes", [](const BoundRequest& self) { return self.request.bytes; })
      .def_property_readonly("tag", [](const BoundRequest& self) { return self.request.tag; })
      .def(
          "check", [](const BoundRequest& self) { check(self.request.status); },
          "Raises if it failed.");

  py::enum_<MemoryKind>(module, "MemoryKind", "A kind of memory, for transports.")
      .value("host", MemoryKind::host)
      .value("cuda", MemoryKind::cuda)
      .value("rocm", MemoryKind::rocm);

  py::class_<BoundLink>(module, "Link")
      .def(
          "send",
          [](BoundLink& self, uint64_t tag, const py::buffer& data) {
            SharedRequest bound = self.transport->keep(data.request());
            self.link->send(tag, bound->buffer.ptr,
                            static_cast<size_t>(bound->buffer.size * bound->buffer.itemsize),
                            MemoryKind::host, bound->request);
            return bound;
          },
          py::arg("tag"), py::arg("data"))
      .def(
          "close", [](BoundLink& self, bool flush) { self.link->close(flush); },
          py::arg("flush") = true)
      .def_property_readonly("offer",
                             [](const BoundLink& self) { return py::bytes(self.link->offer()); })
      .def(
          "counter",
          [](BoundLink& self, const std::string& theirs, uint64_t spread) {
            self.link->counter(theirs, spread);
          },
          py::arg("theirs"), py::arg("spread") = 0)
      .def("open", [](BoundLink& self) { self.link->open(); })
      .def_property_readonly("closed", [](const BoundLink& self) { return self.link->closed(); })
      .def("lose", [](BoundLink& self, size_t stripe) { self.link->lose(stripe); })
      .def_property_readonly("lost",
                             [](const BoundLink& self) { return self.link->lost_stripes(); })
      .def("describe", [](const BoundLink& self) { return self.link->describe(); });

  py::class_<BoundTransport, std::shared_ptr<BoundTransport>>(module, "Transport")
      .def_property_readonly("name",
                             [](const BoundTransport& self) { return self.transport->name(); })
      .def_property_readonly("version",
                             [](const BoundTransport& self) { return self.transport->version(); })
      .def_property_readonly("event_fd",
                             [](const BoundTransport& self) { return self.transport->event_fd(); })
      .def(
          "why_not_direct",
          [](const BoundTransport& self, MemoryKind memory, const std::string& rdma_device) {
            static const char sample[64] = {};
            return self.transport->why_not_direct({memory, sample, sizeof sample}, rdma_device);
          },
          py::arg("memory"), py::arg("rdma_device") = "",
          "Why a device's memory passes through host memory; empty if messages are direct.")
      .def(
          "address",
          [](const BoundTransport& self, bool same_host) {
            return py::bytes(self.transport->address(same_host));
          },
          py::arg("same_host"))
      .def(
          "connect",
          [](const std::shared_ptr<BoundTransport>& self, const std::string& address, int peer,
             bool open) {
            BoundLink made{self, self->transport->connect(address, peer)};
            if (open) made.link->open();
            return made;
          },
          py::arg("address"), py::arg("peer_rank"), py::arg("open") = true)
      .def(
          "arrived",
          [](const BoundTransport& self, uint64_t tag, uint64_t mask) {
            return self.transport->arrived(tag, mask);
          },
          py::arg("tag"), py::arg("mask"), "The tag of an unexpected message, or None.")
      .def(
          "recv",
          [](BoundTransport& self, uint64_t tag, const py::buffer& data, uint64_t mask,
             const BoundLink* from) {
            SharedRequest bound = self.keep(data.request(true));
            self.transport->recv(tag, mask, bound->buffer.ptr,
                                 static_cast<size_t>(bound->buffer.size * bound->buffer.itemsize),
                                 MemoryKind::host, bound->request,
                                 from ? from->link.get() : nullptr);
            return bound;
          },
          py::arg("tag"), py::arg("data"), py::arg("mask") = ~uint64_t{0},
          py::arg("from_link") = static_cast<const BoundLink*>(nullptr))
      .def("cancel",
           [](BoundTransport& self, BoundRequest& bound) { self.transport->cancel(bound.request); })
      .def("progress", &BoundTransport::progress)
      .def("prepare_to_sleep",
           [](BoundTransport& self) { return self.transport->prepare_to_sleep(); })
      .def("wait", &BoundTransport::wait, py::arg("requests"), py::arg("timeout"),
           "Progresses until all requests are done; False if that takes longer than the timeout in "
           "seconds.");

  module.def(
      "make_transport",
      [](const std::string& kind, const std::vector<std::string>& interfaces, bool rdma,
         const std::vector<int64_t>& bandwidths, bool shared_memory) {
        TransportId id{
            .kind = kind, .interfaces = interfaces, .rdma = rdma, .shared_memory = shared_memory};
        for (size_t i = 0; i < bandwidths.size(); ++i) {
          id.stripes.push_back({interfaces.at(i), bandwidths[i]});
        }
        if (!bandwidths.empty()) id.interfaces.clear();
        return std::make_shared<BoundTransport>(id);
      },
      py::arg("kind"), py::arg("interfaces") = std::vector<std::string>(), py::arg("rdma") = true,
      py::arg("bandwidths") = std::vector<int64_t>(), py::arg("shared_memory") = true,
      "A transport of a registered kind over these interfaces, or all. bandwidths: of a striped "
      "one, bytes per second of each interface.");
  module.def(
      "transport_kinds",
      [] {
        std::map<std::string, std::vector<MemoryKind>> kinds;
        for (const TransportKind* kind : transport_kinds()) kinds[kind->name] = kind->memory;
        return kinds;
      },
      "The registered kinds, and the kinds of memory that they can send.");
  module.def("divide", py::overload_cast<size_t, const std::vector<int64_t>&>(&divide),
             py::arg("bytes"), py::arg("bandwidths"),
             "The bytes of a message that each of several NICs carries.");
  module.def(
      "source_filter",
      [](const std::vector<std::string>& sources, size_t most) {
        SourceFilter filter;
        for (const std::string& source : sources) filter.add(source);
        const SourceFilter::Program program = filter.program(most);
        std::vector<std::tuple<int, int, int, uint32_t>> code;
        for (const sock_filter& one : program.code) {
          code.emplace_back(one.code, one.jt, one.jf, one.k);
        }
        return std::pair(code, program.exact);
      },
      py::arg("sources"), py::arg("most") = 4096,
      "The kernel's filter of TCP segments by their sources: instructions (code, jt, jf, k), and "
      "whether the filter admits these sources only.");
  module.def("ucx_version", &ucx_version, "\"1.22.0 (path)\", or the reason why there is none.");
}

const Binding transport_binding(30, bind_transport);

}  // namespace
}  // namespace hetcomm
