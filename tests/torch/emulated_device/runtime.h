#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <functional>

#include "emulated/runtime_abi.h"

// The runtime of an emulated vendor, called as a program of that vendor would. One per process.
namespace emulated_device {

constexpr int kNotReady = hetcomm::emulated::not_ready;

struct Runtime {
#define X(name, parameters) int(*name) parameters = nullptr;
  HETCOMM_EMULATED_RUNTIME_COMMON(X)
#undef X
};

bool opened();
const Runtime& runtime();                 // throws c10::Error unless opened
void check(int error, const char* what);  // throws c10::Error unless 0
bool ready(int error, const char* what);  // false: not ready; throws for other errors
c10::Device current_device();
c10::Stream current_stream();  // of the current device and this thread
void* native(const c10::Stream& stream);
// Calls `function` in the order of the current stream, on a thread of the runtime.
void enqueue(std::function<void()> function);

}  // namespace emulated_device
