#pragma once

#include <string>

#include "emulated/ccl_abi.h"

namespace hetcomm::emulated {

// A failed call or operation. Exported functions return its result; operations keep it as a state.
struct Failure {
  int result = ccl_internal_error;
  std::string text;
};

struct Aborted {};  // thrown where an abort ends a wait

// The text of ncclGetLastError(): the latest failure of this process. Thread-safe.
void note(const std::string& text);
const char* latest_note();
int fail(int result, const std::string& text);  // notes the text, returns `result`

// A line of NCCL_DEBUG=INFO, if that is set.
void inform(const std::string& text);

}  // namespace hetcomm::emulated
