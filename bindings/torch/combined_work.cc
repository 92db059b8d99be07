#include "torch/combined_work.h"

#include <algorithm>

#include "base/timeout.h"
#include "torch/work.h"

namespace hetcomm {

CombinedWork::CombinedWork(Parts parts, int rank)
    : c10d::Work(rank, c10d::OpType::COALESCED), parts_(std::move(parts)) {}

bool CombinedWork::isCompleted() {
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const auto& part) { return part->isCompleted(); });
}

bool CombinedWork::isSuccess() const {
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const auto& part) { return part->isSuccess(); });
}

std::exception_ptr CombinedWork::exception() const {
  for (const auto& part : parts_) {
    if (std::exception_ptr thrown = part->exception()) return thrown;
  }
  return nullptr;
}

bool CombinedWork::wait(std::chrono::milliseconds timeout) {
  if (timeout == kNoTimeout) {
    for (const auto& part : parts_) part->wait(timeout);
    return true;
  }
  const Deadline deadline(with_python_errors([&] { return torch_timeout(timeout); }));
  for (const auto& part : parts_) {
    part->wait(std::max(deadline.left_ms(), std::chrono::milliseconds(1)));
  }
  return true;
}

void CombinedWork::synchronize() {
  for (const auto& part : parts_) part->synchronize();
}

void CombinedWork::abort() { throw_cannot_abort(); }

std::vector<at::Tensor> CombinedWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& part : parts_) {
    const std::vector<at::Tensor> some = part->result();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> CombinedWork::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::ofTensors()));
  for (const auto& part : parts_) futures.push_back(part->getFuture());
  return c10::collectAll(futures)->then(
      [](c10::ivalue::Future& all) {
        c10::List<at::Tensor> tensors;
        for (const c10::IValue& one : all.value().toListRef()) {
          const auto future = one.toFuture();
          if (future->hasError()) std::rethrow_exception(future->exception_ptr());
          for (const at::Tensor& tensor : future->value().toTensorVector()) {
            tensors.push_back(tensor);
          }
        }
        return c10::IValue(tensors);
      },
      c10::ListType::ofTensors());
}

uint64_t CombinedWork::getSequencenumber() const {
  return parts_.empty() ? 0 : parts_.back()->getSequencenumber();
}

float CombinedWork::getDuration() const {
  float longest = 0;
  for (const auto& part : parts_) longest = std::max(longest, part->getDuration());
  return longest;
}

c10::intrusive_ptr<c10d::Work> combined(CombinedWork::Parts parts, int rank) {
  if (parts.size() == 1) return parts[0];
  return c10::make_intrusive<CombinedWork>(std::move(parts), rank);
}

}  // namespace hetcomm
