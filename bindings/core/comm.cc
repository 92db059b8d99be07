#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/fork.h"
#include "base/timeout.h"
#include "bootstrap/bootstrap.h"
#include "comm/communicator.h"
#include "comm/process_exit.h"
#include "core/arguments.h"
#include "core/array_spec.h"
#include "core/binding.h"
#include "core/interpreter_end.h"
#include "core/waiting.h"
#include "python/caller.h"
#include "python/error_text.h"
#include "transport/transports.h"

namespace py = pybind11;

namespace hetcomm {

namespace {

// A signal goes before the failure of the operation. So Ctrl-C on all ranks is an interrupt on each
// rank, and not the failure of another rank.
void check_outcome(const Status& status) {
  if (status.ok()) return;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  throw Error(status);
}

}  // namespace

namespace {

// Calls `within(time)`, which waits for at most `time`, until it returns true. The interpreter goes
// on meanwhile, and handles signals.
template <typename Within>
void wait_interruptibly(const Work& work, std::chrono::nanoseconds timeout, const Within& within) {
  bool late = false;
  for (const Deadline deadline(timeout);;) {
    {
      const py::gil_scoped_release release;
      if (within(std::min(deadline.left(), kSignalInterval))) return;
    }
    if (!std::exchange(late, true)) work.note_caller(python_caller());
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (deadline.passed()) throw Error(work.timeout_error(timeout));
  }
}

}  // namespace

void wait_released(const Work& work, std::optional<double> seconds) {
  const auto bound = seconds ? given_timeout(Seconds(*seconds)) : work.timeout();
  if (!work.done()) {
    wait_interruptibly(work, bound, [&](auto time) { return work.done_within(time); });
  }
  check_outcome(work.status());
}

namespace {

void block_stream(const Work& work, uintptr_t number) {
  const auto stream = reinterpret_cast<Stream>(number);
  const auto released = [](const auto& function) {
    const py::gil_scoped_release release;
    return function();
  };
  check(released([&] { return work.check_not_captured(stream); }));
  if (!released([&] { return work.in_streams(); })) {
    wait_interruptibly(work, work.timeout(),
                       [&](auto time) { return work.in_streams_within(time); });
  }
  check_outcome(released([&] { return work.block_stream(stream); }));
}

// The interpreter may end meanwhile, and ends this thread inside the call. The thread parks here
// (see park_late_threads()), before destructors use the interpreter.
PyObject* call_or_park(PyObject* function, PyObject* arguments) noexcept {
  return PyObject_Call(function, arguments, nullptr);
}

template <typename... Arguments>
py::object call_python(const py::function& function, const Arguments&... arguments) {
  const py::tuple given = py::make_tuple(arguments...);
  PyObject* const result = call_or_park(function.ptr(), given.ptr());
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

// A store written in Python: anything with set(key, value) and get(key, timeout) of bytes.
class PythonStore : public Store {
 public:
  void set(const std::string& key, const std::string& value, const Deadline&) override {
    call([&] { call_python(method("set"), key, py::bytes(value)); });
  }
  std::string get(const std::string& key, const Deadline& deadline) override {
    std::string value;
    call([&] {
      try {
        const std::chrono::duration<double> left(deadline.left());
        value = call_python(method("get"), key, left).cast<std::string>();
      } catch (py::cast_error&) {
        throw Error(Code::invalid_argument,
                    "store: expected bytes from get(), got something else; correct the class");
      }
    });
    return value;
  }
  void remove(const std::vector<std::string>& keys) override {
    call([&] {
      const auto found = keys.empty() ? py::function() : optional("delete_key");
      for (const std::string& key : keys) {
        if (found) call_python(found, key);
      }
    });
  }
  void leave_will(const std::string& key, const std::string& value, const Deadline&) override {
    call([&] {
      if (const auto found = optional("leave_will")) call_python(found, key, py::bytes(value));
    });
  }
  void withdraw_will(const std::string& key, const Deadline&) override {
    call([&] {
      if (const auto found = optional("withdraw_will")) call_python(found, key);
    });
  }
  std::string place() const override {
    std::string found = Store::place();
    call([&] {
      if (const auto known = optional("place")) found = call_python(known).cast<std::string>();
    });
    return found;
  }

 private:
  // Errors of Python become errors of the store.
  template <typename Function>
  static void call(const Function& function) {
    const py::gil_scoped_acquire gil;
    try {
      function();
    } catch (py::error_already_set& error) {
      const bool late = error.matches(PyExc_TimeoutError);
      throw Error(late ? Code::timeout : Code::transport, text_of(error));
    }
  }
  py::function optional(const char* name) const {
    return py::get_override(static_cast<const Store*>(this), name);
  }
  py::function method(const char* name) const {
    if (auto found = optional(name)) return found;
    throw Error(Code::invalid_argument, std::string("store: expected a class with set(key, value) "
                                                    "and get(key, timeout), got one without ") +
                                            name + "; define it");
  }
};

// Calls Python's handlers of pending signals.
void handle_signals() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// The object of Python lives as long as a thread may call the store.
std::shared_ptr<Store> shared_store(const py::object& object) {
  auto* const store = object.cast<Store*>();
  auto* const held = new py::object(object);
  return {store, [held](Store*) {
            if (Py_IsInitialized() == 0) return;
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

// The memory of one call.
struct Buffer {
  HeldBuffer held;

  Buffer(const py::object& object, bool writable) {
    const int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (!object.is_none() && !held.take(object, flags)) throw py::error_already_set();
  }
  void* data() const { return held->buf; }
  int64_t bytes() const { return held->len; }
};

int64_t elements(const Buffer& given, Dtype dtype) {
  const auto size = static_cast<int64_t>(size_of(dtype));
  if (given.bytes() % size == 0) return given.bytes() / size;
  throw Error(Code::invalid_argument, "expected a buffer of whole " + std::string(name(dtype)) +
                                          " elements of " + std::to_string(size) + " bytes, got " +
                                          std::to_string(given.bytes()) +
                                          " bytes; name the array's own dtype");
}

void require(const char* which, const Buffer& given, int64_t elements, Dtype dtype) {
  const int64_t bytes = elements * static_cast<int64_t>(size_of(dtype));
  if (given.bytes() == bytes) return;
  throw Error(Code::invalid_argument,
              std::string("the ") + which + " buffer: expected " + std::to_string(bytes) +
                  " bytes (" + std::to_string(elements) + " x " + name(dtype) + "), got " +
                  std::to_string(given.bytes()) + "; see Spec.buffer_counts()");
}

// Without the interpreter's lock, because leaving waits for other ranks.
struct Leaving {
  void operator()(Communicator* communicator) const {
    py::gil_scoped_release release;
    delete communicator;
  }
};

void end_process() {
  park_late_threads();
  shut_down();
}

template <typename T>
auto bind_store(py::module_& module, const char* name, const char* text) {
  return py::class_<T, Store>(module, name, text)
      .def("set",
           [](T& self, const std::string& key, const py::bytes& value) {
             const std::string bytes(value);
             const py::gil_scoped_release release;
             self.set(key, bytes, Deadline(kLongestTimeout));
           })
      .def("get", [](T& self, const std::string& key, const py::object& timeout) {
        // pybind11's conversion overflows for the longest timedelta.
        const Seconds seconds(timeout.attr("total_seconds")().cast<double>());
        std::string found;
        {
          const py::gil_scoped_release release;
          found = self.get(key, Deadline(given_timeout(seconds)));
        }
        return py::bytes(found);
      });
}

void bind_comm(py::module_& module) {
  py::class_<Store, PythonStore>(
      module, "Store",
      "The place where ranks find each other. Derive and define "
      "set(key, value: bytes) and get(key, timeout: timedelta) -> bytes; and delete_key(key), if "
      "the values of finished set-ups shall not stay.")
      .def(py::init<>())
      .def(
          "leave_will", [](const Store&, const std::string&, const py::bytes&) {}, py::arg("key"),
          py::arg("value"),
          "Override it in stores that see the end of a process: the store sets the key, unless it "
          "is set, if this process ends before withdraw_will().")
      .def(
          "withdraw_will", [](const Store&, const std::string&) {}, py::arg("key"))
      .def(
          "place", [](const Store& self) { return self.Store::place(); },
          "The store in words, for errors; override it.")
      .def("delete_key", [](Store& self, const std::string& key) {
        const py::gil_scoped_release release;
        self.remove({key});
      });
  bind_store<LocalStore>(module, "LocalStore", "For ranks that are threads of one process.")
      .def(py::init<>());
  bind_store<SealedStore>(module, "SealedStore", "A store whose values carry a group's seals.");
  py::class_<Numbers>(module, "Numbers", "Blocks of unique numbers below a limit.")
      .def(py::init<uint32_t>(), py::arg("limit"))
      .def("take", &Numbers::take, py::arg("count") = 1)
      .def("release", &Numbers::release, py::arg("first"));
  py::class_<Executor, std::shared_ptr<Executor>>(module, "Executor")
      .def(py::init([](const std::vector<std::string>& transports) {
             return make_shared_of_process<Executor>(std::make_unique<Transports>(transports));
           }),
           py::arg("transports") = std::vector<std::string>{"ucx"},
           "A further executor, for ranks that are threads of one process.")
      .def_static("without_transport", [](const std::string& why) {
        return make_shared_of_process<Executor>(
            std::make_unique<Transports>(Status(Code::vendor, why)));
      });
  py::class_<Work>(module, "Work")
      .def("done", &Work::done)
      .def("wait", &wait_released, py::arg("timeout") = py::none(),
           "Waits until done, at most `timeout` seconds. Raises hetcomm.Error on a failure. Ctrl-C "
           "ends the wait.")
      .def("block_stream", &block_stream, py::arg("stream"),
           "A stream of the device waits until done. The host waits until the rest is in streams.")
      .def_property_readonly("source", &Work::source, "The sender's rank, once a receive is done.")
      .def("where", &Work::where, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly(
          "trace",
          [](const Work& self) {
            return self.done() ? std::const_pointer_cast<Trace>(self.trace()) : nullptr;
          },
          "The trace, once done; None unless the communicator was tracing.");
  py::class_<Communicator, std::unique_ptr<Communicator, Leaving>>(
      module, "Communicator",
      "A group of ranks. Creation is collective, and blocks until all ranks have come.")
      .def(py::init([](const py::object& store, int rank, int size, double timeout,
                       std::string name, std::shared_ptr<Executor> executor, std::string host,
                       std::string vendor, int device) {
             const BootstrapOptions options{.rank = rank,
                                            .size = size,
                                            .name = std::move(name),
                                            .timeout = given_timeout(Seconds(timeout)),
                                            .executor = std::move(executor),
                                            .host = std::move(host),
                                            .vendor = std::move(vendor),
                                            .device = device,
                                            .look = handle_signals};
             auto shared = shared_store(store);
             const py::gil_scoped_release release;
             return std::unique_ptr<Communicator, Leaving>(
                 new Communicator(bootstrap(std::move(shared), options)));
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout") = 1800.0,
           py::arg("name") = "default", py::arg("executor") = nullptr, py::arg("host") = "",
           py::arg("vendor") = "", py::arg("device") = -1)
      .def_property_readonly("rank", &Communicator::rank)
      .def_property_readonly("size", &Communicator::size)
      .def_property_readonly("topology", &Communicator::topology,
                             py::return_value_policy::reference_internal)
      .def(
          "key",
          [](const Communicator& self, const std::string& purpose) {
            return py::bytes(self.key(purpose));
          },
          py::arg("purpose"),
          "A key that all ranks of this group have, and nobody else with a job key.")
      .def(
          "submit",
          [](Communicator& self, const Spec& spec, const py::object& input,
             const py::object& output, bool will_wait, std::optional<uintptr_t> stream) {
            auto in = std::make_shared<Buffer>(input, spec.in_place);
            auto out = spec.in_place ? in : std::make_shared<Buffer>(output, true);
            const BufferCounts counts = buffer_counts(spec, self.rank(), self.size());
            require("input", *in, counts.input, spec.dtype);
            if (!spec.in_place) require("output", *out, counts.output, spec.dtype);
            py::gil_scoped_release release;
            return keeping(self.submit(spec, in->data(), out->data(),
                                       options_of(will_wait, std::nullopt, stream)),
                           in, out);
          },
          py::arg("spec"), py::arg("input"), py::arg("output") = py::none(),
          py::arg("will_wait") = false, py::arg("stream") = py::none())
      .def(
          "send",
          [](Communicator& self, const py::object& data, Dtype dtype, int to, uint32_t tag,
             std::optional<uintptr_t> stream) {
            auto in = std::make_shared<Buffer>(data, false);
            py::gil_scoped_release release;
            return keeping(self.send(in->data(), dtype, elements(*in, dtype), to, tag,
                                     options_of(false, std::nullopt, stream)),
                           in);
          },
          py::arg("data"), py::arg("dtype"), py::arg("to"), py::arg("tag") = 0,
          py::arg("stream") = py::none())
      .def(
          "recv",
          [](Communicator& self, const py::object& data, Dtype dtype, int from, uint32_t tag,
             std::optional<uintptr_t> stream) {
            auto out = std::make_shared<Buffer>(data, true);
            py::gil_scoped_release release;
            return keeping(self.recv(out->data(), dtype, elements(*out, dtype), from, tag,
                                     options_of(false, std::nullopt, stream)),
                           out);
          },
          py::arg("data"), py::arg("dtype"), py::arg("from_"), py::arg("tag") = 0,
          py::arg("stream") = py::none())
      .def(
          "report_refusal",
          [](Communicator& self, const std::string& why) {
            self.report_refusal(Status(Code::invalid_argument, why, self.rank()));
          },
          py::arg("why"), py::call_guard<py::gil_scoped_release>(),
          "Tells the other ranks, which may wait, that this rank cannot make its next collective.")
      .def("begin_trace", &Communicator::begin_trace,
           "From now on operations record the times of their steps.")
      .def(
          "end_trace",
          [](Communicator& self) {
            std::vector<std::shared_ptr<Trace>> traces;
            const py::gil_scoped_release release;
            for (auto& trace : self.end_trace()) {
              traces.push_back(std::const_pointer_cast<Trace>(trace));
            }
            return traces;
          },
          "Ends tracing; the traces of operations that are over, in the order of their calls.")
      .def("abort", &Communicator::abort, py::call_guard<py::gil_scoped_release>(),
           py::arg("reason") = "abort() was called")
      .def("leave", &Communicator::leave, py::call_guard<py::gil_scoped_release>())
      .def(
          "sealed", [](const Communicator& self, Store& store) { return self.sealed(store); },
          py::arg("store"), py::keep_alive<0, 2>(),
          "The store; with a job key its values carry seals of this group.")
      .def("check_process", &Communicator::check_process,
           "Raises InvalidArgumentError in a child of fork().")
      .def(
          "register_buffer",
          [](Communicator& self, uintptr_t address, size_t bytes) {
            self.register_buffer(pointer(address), bytes);
          },
          py::arg("address"), py::arg("bytes"), py::call_guard<py::gil_scoped_release>(),
          "Registers device memory for repeated collectives; all ranks of an island do so.")
      .def(
          "deregister_buffer",
          [](Communicator& self, uintptr_t address) { self.deregister_buffer(pointer(address)); },
          py::arg("address"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("direct_calls",
                             [](const Communicator& self) {
                               const py::gil_scoped_release release;
                               return self.direct_calls();
                             })
      .def("path_to", &Communicator::path_to, py::arg("peer"),
           py::call_guard<py::gil_scoped_release>());
  module.def("shut_down", &end_process, py::call_guard<py::gil_scoped_release>(),
             "Lets every communicator of this process leave; for process exit.");
  // Without this, other ranks take a process that ends in good order for dead, and its progress
  // thread uses UCX while UCX ends.
  py::module_::import("atexit").attr("register")(module.attr("shut_down"));
}

const Binding comm_binding(40, bind_comm);

}  // namespace
}  // namespace hetcomm
