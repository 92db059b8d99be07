// Registered buffers.
#include "base/config.h"
#include "base/log.h"
#include "island/ccl/communicator.h"

namespace hetcomm {

// Registers with both communicators: later calls may use either.
void CclCommunicator::register_buffer(void* pointer, size_t bytes) {
  if (library_.CommRegister == nullptr || library_.CommDeregister == nullptr) {
    throw Error(Code::vendor, library_.version +
                                  ": expected ncclCommRegister, which came with NCCL 2.19; got a "
                                  "library without it; use the memory as it is");
  }
  if (pointer == nullptr || bytes == 0 || registrations_.contains(pointer)) {
    throw Error(Code::invalid_argument,
                library_.version + ": expected memory that is not registered yet; got " +
                    (registrations_.contains(pointer) ? "a buffer that is" : "an empty buffer"));
  }
  std::vector<Registration> made;
  for (nccl::Communicator* communicator : {blocking_.handle, first_.handle}) {
    if (communicator == nullptr) continue;
    void* handle = nullptr;
    const nccl::Result result = library_.CommRegister(communicator, pointer, bytes, &handle);
    if (result != nccl::success) {
      for (const Registration& one : made) library_.CommDeregister(one.communicator, one.handle);
      throw Error(Code::vendor, library_.failure("ncclCommRegister", result) + ", of " +
                                    format_bytes(static_cast<int64_t>(bytes)) +
                                    "; give whole device buffers");
    }
    made.push_back({communicator, handle});
  }
  registrations_.emplace(pointer, std::move(made));
}

void CclCommunicator::deregister_buffer(void* pointer) {
  const auto found = registrations_.find(pointer);
  if (found == registrations_.end()) {
    throw Error(Code::invalid_argument, library_.version +
                                            ": expected the address of a registered buffer; got "
                                            "another one; give where the buffer begins");
  }
  const std::vector<Registration> made = std::move(found->second);
  registrations_.erase(found);
  for (const Registration& one : made) {
    const nccl::Result result = library_.CommDeregister(one.communicator, one.handle);
    if (result == nccl::success) continue;
    throw Error(Code::vendor, library_.failure("ncclCommDeregister", result));
  }
}

void CclCommunicator::drop_registrations() {
  for (const auto& [pointer, made] : registrations_) {
    for (const Registration& one : made) {
      const nccl::Result result = library_.CommDeregister(one.communicator, one.handle);
      if (result != nccl::success) {
        log(LogLevel::debug, library_.failure("ncclCommDeregister", result), rank_);
      }
    }
  }
  registrations_.clear();
}

}  // namespace hetcomm
