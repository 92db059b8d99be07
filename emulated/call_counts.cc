#include "emulated/call_counts.h"

#include <map>
#include <mutex>
#include <string>

#include "base/text.h"
#include "emulated/runtime.h"

namespace hetcomm::emulated {

namespace {

struct Counts {
  std::mutex mutex;
  std::map<const char*, uint64_t> calls;  // by signature
};

// Never destroyed: threads may outlive static objects.
Counts& counts() {
  static auto* counts = new Counts;
  return *counts;
}

// "cudaEventRecord" of "int cudaEventRecord(void*, void*)".
std::string name_in(const std::string& signature) {
  const size_t end = signature.find('(');
  size_t begin = end;
  while (begin > 0 && (is_letter_or_digit(signature[begin - 1]) || signature[begin - 1] == '_'))
    --begin;
  return signature.substr(begin, end - begin);
}

}  // namespace

void count_call(const std::source_location& where) {
  if (!settings().counts) return;
  std::lock_guard lock(counts().mutex);
  ++counts().calls[where.function_name()];
}

}  // namespace hetcomm::emulated

using namespace hetcomm::emulated;

// A line for each function: its name and how often it was called since the last such line. Valid
// until this thread's next call.
EXPORT const char* hetcomm_emulated_calls() {
  static thread_local std::string text;
  text.clear();
  std::lock_guard lock(counts().mutex);
  for (const auto& [signature, calls] : counts().calls) {
    text += name_in(signature) + " " + std::to_string(calls) + "\n";
  }
  counts().calls.clear();
  return text.c_str();
}
