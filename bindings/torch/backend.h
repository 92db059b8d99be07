#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/call_codec.h"
#include "comm/communicator.h"
#include "torch/call.h"
#include "torch/interrupt.h"
#include "torch/observer.h"
#include "torch/options.h"
#include "torch/work.h"

namespace hetcomm {

// torch.distributed's view of a Communicator. An operation describes its tensors to a Call, and the
// handle is a TorchWork or a StreamedWork. As thread-safe as the communicator.
class TorchBackend : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;

  TorchBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
               std::chrono::nanoseconds timeout, const std::string& name, const std::string& vendor,
               int device, const std::string& codec = "",
               std::function<Status()> why_stop = {});  // not ok once set-up is in vain
  ~TorchBackend() override;
  // Called when no strong reference is left; a parent may keep a weak one.
  void release_resources() override;

  const std::string getBackendName() const override { return "hetcomm"; }

  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options) override;
  WorkPointer reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ReduceScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override;
  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(Tensors& tensors,
                                  const c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input,
                            std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs,
                       const c10d::AllToAllOptions& options) override;
  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ScatterOptions& options) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;
  // Rank 0 waits for a message of every rank, then answers. After the timeout rank 0 throws, and
  // names the first missing rank, or all missing ranks with `wait_all_ranks`. Other ranks throw if
  // rank 0 does not answer. The group stays usable.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  WorkPointer send(Tensors& tensors, int to, int tag) override;
  WorkPointer recv(Tensors& tensors, int from, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;

  // Methods without `override` are virtual in newer torch alone; 2.6 has no such calls.

  // endCoalescing() returns one work for all operations that this thread has started since.
  bool supportsCoalescing() const { return true; }
  void startCoalescing() override;
  WorkPointer endCoalescing() override;

  void setSequenceNumberForGroup() override {}  // all ranks count from 0
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  bool supportsShrinking() const { return true; }
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t>& excluded, int flags,
                                           const c10::intrusive_ptr<Options>& options);
  bool supportsSplitting() const { return true; }
  // A group of these ranks, in this order; null on other ranks.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options);
  // A group of all processes that make this call with the store.
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<Options>& options,
                                          const int& rank, const int& size);
  // Uninitialised tensors that the ranks of this host read in place. `device` is torch's index.
  bool supportsTensorAlloc(c10::DeviceIndex device);
  at::Tensor allocateTensor(long size, at::TensorOptions options);
  c10::intrusive_ptr<Options> getBackendOptions();
  int children() const { return children_; }  // groups made from this one
  void setTimeout(std::chrono::milliseconds timeout);
  ErrorType getError();
  void abort();
  void shutdown();

  // The hook is called once for every operation that succeeds, on a thread of callbacks.
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  // Waits until no operation is under way, and the hook has been called for all operations.
  void waitForPendingWorks();
  // Later operations measure their durations.
  void enableCollectivesTiming() override { timed_ = true; }

  // See Communicator::register_buffer(). Throws Error.
  void register_buffer(const at::Tensor& tensor);
  Communicator& communicator() const { return *communicator_; }

 private:
  template <typename Options>
  Call new_call(const char* operation, c10d::OpType type, Collective collective,
                const Options& options) const {
    communicator_->check_process();
    Call call(operation, type, collective, device_, rank_, size_);
    call.timeout = options.timeout;
    call.will_wait = caller_waits(options);
    CallCodec::of_thread().apply(call.spec);
    return call;
  }
  // Reports an exception of `prepare` to the other ranks, which may wait for this rank's call.
  template <typename Prepare>
  void reporting_refusal(const Prepare& prepare) {
    try {
      prepare();
    } catch (const Error& error) {
      communicator_->report_refusal(error.status());
      throw;
    } catch (const std::exception& error) {  // of torch: no memory for a copy, for instance
      communicator_->report_refusal(Status(Code::invalid_argument, error.what(), rank_));
      throw;
    }
  }
  // A collective. `prepare(call)` describes its tensors.
  template <typename Options, typename Prepare>
  WorkPointer run(const char* operation, c10d::OpType type, Collective collective,
                  const Options& options, const Prepare& prepare) {
    return with_python_errors([&] {
      Call call = new_call(operation, type, collective, options);
      reporting_refusal([&] { prepare(call); });
      return submit_collective(std::move(call));
    });
  }
  // One collective for each dtype of `tensors`. `prepare(call, indices)` describes the tensors of
  // one dtype. Starts nothing if `check()`, `prepare` or validation throws.
  template <typename CallOptions, typename Check, typename Prepare>
  WorkPointer run_coalesced(const char* operation, c10d::OpType type, Collective collective,
                            const CallOptions& options, const Tensors& tensors, const Check& check,
                            const Prepare& prepare);
  WorkPointer submit_collective(Call call);
  // A message, posted by `post(call, tag, options)`.
  template <typename Post>
  WorkPointer message(const char* operation, c10d::OpType type, Collective direction,
                      Tensors& tensors, int tag, const Post& post);
  // Calls `start`. A failure inside a batch is thrown at the end of the batch.
  WorkPointer start_message(const std::function<WorkPointer()>& start);
  // Submits by `submit(call, options)` and makes torch's handle.
  template <typename Submit>
  WorkPointer submit(Call call, uint64_t sequence, const Submit& submit);
  WorkPointer add_to_batch(WorkPointer work) const;  // if this thread has one open

  // A group whose members meet under a prefix of the store. One thread at a time: all ranks make
  // groups in one order.
  c10::intrusive_ptr<c10d::Backend> child(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::string& prefix, int rank, int size,
                                          const c10::intrusive_ptr<Options>& options,
                                          const std::string& name,
                                          std::function<Status()> why_stop = {});
  template <typename Make>
  c10::intrusive_ptr<c10d::Backend> child_for(const c10::intrusive_ptr<c10d::Store>& store,
                                              const Make& make);

  static uint64_t next_id();

  const uint64_t id_ = next_id();  // an address may be used again
  c10::intrusive_ptr<c10d::Store> store_;
  const std::string name_, vendor_, codec_;
  std::unique_ptr<Communicator> communicator_;
  std::shared_ptr<GroupReference> reference_;
  std::shared_ptr<const TorchDevice> device_;
  std::atomic<uint64_t> sequence_{0};
  uint32_t monitored_barriers_ = 0;
  std::atomic<int> children_{0};
  std::map<std::string, int> splits_;   // by members
  std::map<std::string, int> shrinks_;  // by excluded ranks
  // The last child, while it is in use, and the store that torch gave for it.
  c10::intrusive_ptr<c10d::Store> last_child_store_;
  c10::weak_intrusive_ptr<c10d::Backend> last_child_;
  std::atomic<bool> timed_{false};
  const std::shared_ptr<Observer> observer_ = std::make_shared<Observer>();
};

// "0, 2" for `separator` ", ".
std::string rank_list(const std::vector<int>& ranks, const char* separator);

}  // namespace hetcomm
