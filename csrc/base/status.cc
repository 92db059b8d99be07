#include "base/status.h"

#include <cxxabi.h>

#include <new>
#include <typeinfo>

namespace hetcomm {
namespace {

// Made while there is memory.
const Status kNoMemory(Code::aborted,
                       "this process has no memory left; free some, or use smaller tensors");

}  // namespace

const char* name(Code code) {
  switch (code) {
    case Code::ok:
      return "ok";
    case Code::invalid_argument:
      return "invalid argument";
    case Code::transport:
      return "transport error";
    case Code::vendor:
      return "vendor library error";
    case Code::timeout:
      return "timeout";
    case Code::aborted:
      return "aborted";
    case Code::peer_failed:
      return "peer failed";
  }
  return "unknown";
}

Status status_of(const std::exception& error) noexcept {
  if (const auto* own = dynamic_cast<const Error*>(&error)) return own->status();
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return kNoMemory;
  try {
    return Status(Code::aborted, error.what());
  } catch (const std::exception&) {
    return kNoMemory;
  }
}

Status status_of_caught() {
  try {
    throw;
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (const std::exception& error) {
    return status_of(error);
  } catch (...) {
    const std::type_info* const type = abi::__cxa_current_exception_type();
    return Status(Code::aborted, std::string("an exception of the type ") +
                                     (type == nullptr ? "of another language" : type->name()) +
                                     " came from a library or a callback");
  }
}

std::vector<int> Status::failed_ranks() const {
  if (ok()) return {};
  const Details& d = *details_;
  if (d.failed.empty() && d.code == Code::peer_failed && d.peer >= 0) return {d.peer};
  return d.failed;
}

std::string Status::text() const {
  if (ok()) return "ok";
  const Details& d = *details_;
  std::string text = d.message;
  std::string where;
  auto add = [&where](const std::string& part) { where += (where.empty() ? "" : ", ") + part; };
  if (!d.op.empty()) add(d.op);
  if (d.step >= 0) add("step " + std::to_string(d.step));
  if (d.rank >= 0) add("seen by rank " + std::to_string(d.rank));
  if (d.peer >= 0) add("peer rank " + std::to_string(d.peer));
  return where.empty() ? text : text + " [" + where + "]";
}

}  // namespace hetcomm
