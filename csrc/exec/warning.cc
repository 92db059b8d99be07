#include "exec/warning.h"

#include <memory>
#include <mutex>

#include "base/fork.h"
#include "base/log.h"
#include "exec/callbacks.h"

namespace hetcomm {
namespace {

struct Sink {
  std::mutex mutex;
  std::shared_ptr<const WarningSink> sink;
};

}  // namespace

void set_warning_sink(WarningSink sink) {
  auto& current = of_process<Sink>();
  std::lock_guard lock(current.mutex);
  current.sink = sink ? std::make_shared<const WarningSink>(std::move(sink)) : nullptr;
}

void warn(const std::string& text, int rank) {
  std::shared_ptr<const WarningSink> sink;
  {
    auto& current = of_process<Sink>();
    std::lock_guard lock(current.mutex);
    sink = current.sink;
  }
  log(sink ? LogLevel::info : LogLevel::warning, text, rank);
  if (sink) run_callback([=] { run_logged([&] { (*sink)(text); }); });
}

}  // namespace hetcomm
