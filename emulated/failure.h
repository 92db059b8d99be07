#pragma once

#include <string>

#include "emulated/ccl_abi.h"

namespace hetcomm::emulated {

// What went wrong, thrown by set-up and operations, caught where a result is returned or kept.
struct Failure {
  int result = ccl_internal_error;
  std::string text;
};

struct Aborted {};  // thrown where an abort ends a wait

// What ncclGetLastError says: the latest failure of this process. Thread-safe.
void note(const std::string& text);
const char* latest_note();
int fail(int result, const std::string& text);  // notes the text, returns `result`

// A line of NCCL_DEBUG=INFO, if that is set.
void inform(const std::string& text);

}  // namespace hetcomm::emulated
