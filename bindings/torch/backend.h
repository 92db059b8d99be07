#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/communicator.h"
#include "torch/call.h"
#include "torch/interrupt.h"
#include "torch/observer.h"
#include "torch/options.h"
#include "torch/work.h"

namespace hetcomm {

// torch.distributed's view of a Communicator: each operation says what is its own, Call and
// TorchWork do the rest. Thread-safe as the communicator is.
class TorchBackend : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;

  TorchBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
               std::chrono::nanoseconds timeout, const std::string& name, const std::string& vendor,
               int device);
  ~TorchBackend() override;
  // When nobody holds this any more, though its parent may remember it.
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
  // Rank 0 hears from every rank, then answers. Throws on rank 0 if some rank has not come within
  // the timeout: names the first one, or all with `wait_all_ranks`; on the others if rank 0 does
  // not answer. The group stays usable.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  WorkPointer send(Tensors& tensors, int to, int tag) override;
  WorkPointer recv(Tensors& tensors, int from, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;

  // Methods without `override` are virtual in newer torch alone; 2.6 has no such calls.

  // What this thread starts in between is also handed out as one work.
  bool supportsCoalescing() const { return true; }
  void startCoalescing() override;
  WorkPointer endCoalescing() override;

  void setSequenceNumberForGroup() override {}  // counted alike on every rank from the start
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  bool supportsShrinking() const { return true; }
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t>& excluded, int flags,
                                           const c10::intrusive_ptr<Options>& options);
  bool supportsSplitting() const { return true; }
  // A group of these ranks, in this order; null on a rank that is not one of them.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options);
  // A group of all who meet in the store, of whatever groups they are now.
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<Options>& options,
                                          const int& rank, const int& size);
  // Tensors of any contents that the ranks of this host read in place; `device` is torch's index.
  bool supportsTensorAlloc(c10::DeviceIndex device);
  at::Tensor allocateTensor(long size, at::TensorOptions options);
  c10::intrusive_ptr<Options> getBackendOptions();
  int children() const { return children_; }  // made so far
  void setTimeout(std::chrono::milliseconds timeout);
  ErrorType getError();
  void abort();
  void shutdown();

  // The hook is called once for every operation that succeeds, on a thread of callbacks.
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  // Until no operation is under way and the hook has been called for all.
  void waitForPendingWorks();
  // Works started from now on know how long they took.
  void enableCollectivesTiming() override { timed_ = true; }

  // Memory that collectives use again and again; all ranks of an island register theirs.
  void register_buffer(const at::Tensor& tensor);
  void deregister_buffer(const at::Tensor& tensor);
  int64_t direct_calls() const { return communicator_->direct_calls(); }
  // See Communicator.
  void begin_trace();
  std::vector<std::shared_ptr<const Trace>> end_trace();

 private:
  template <typename Options>
  Call made(const char* operation, c10d::OpType type, Collective collective,
            const Options& options) const {
    communicator_->check_process();
    Call call(operation, type, collective, home_, rank_, size_);
    call.timeout = options.timeout;
    call.will_wait = waits(options);
    return call;
  }
  // Calls `prepare`; of what it throws the others hear, who may wait for this rank.
  template <typename Prepare>
  auto telling(const Prepare& prepare) {
    try {
      return prepare();
    } catch (const Error& error) {
      communicator_->report_refusal(error.status());
      throw;
    } catch (const std::exception& error) {  // torch's own: no memory for a copy, for instance
      communicator_->report_refusal(Status(Code::invalid_argument, error.what(), rank_));
      throw;
    }
  }
  template <typename Options, typename Prepare>
  WorkPointer run(const char* operation, c10d::OpType type, Collective collective,
                  const Options& options, const Prepare& prepare) {
    return with_python_errors([&] {
      Call call = made(operation, type, collective, options);
      telling([&] { prepare(call); });
      return start(std::move(call));
    });
  }
  WorkPointer start(Call call);
  // One collective for the tensors of each dtype, prepared by `prepare` from their indices. Either
  // all are started or, if one cannot be or `check` throws, none.
  template <typename CallOptions, typename Check, typename Prepare>
  WorkPointer together(const char* operation, c10d::OpType type, Collective collective,
                       const CallOptions& options, const Tensors& tensors, const Check& check,
                       const Prepare& prepare);
  WorkPointer batched(WorkPointer work) const;  // noted in the open batch, if there is one
  // Starts a message by `start`.
  WorkPointer message(const std::function<WorkPointer()>& start);
  // Submits by `submit(call, options)` and makes torch's handle.
  template <typename Submit>
  WorkPointer finish(Call call, uint64_t sequence, const Submit& submit);

  // A group whose members meet at a place of the store. One thread at a time: all ranks make groups
  // in one order.
  c10::intrusive_ptr<c10d::Backend> child(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::string& place, int rank, int size,
                                          const c10::intrusive_ptr<Options>& options,
                                          const std::string& name);
  template <typename Make>
  c10::intrusive_ptr<c10d::Backend> child_for(const c10::intrusive_ptr<c10d::Store>& store,
                                              const Make& make);

  static uint64_t next_id();

  const uint64_t id_ = next_id();  // unlike an address never used again
  c10::intrusive_ptr<c10d::Store> store_;
  const std::string name_, vendor_;
  std::unique_ptr<Communicator> communicator_;
  std::shared_ptr<GroupReference> reference_;
  std::shared_ptr<const Home> home_;
  std::atomic<uint64_t> sequence_{0};
  uint32_t monitored_ = 0;  // barriers so far
  std::atomic<int> children_{0};
  std::map<std::string, int> splits_, shrinks_;  // by members, by those left out
  // The last child and the store that torch gave for it, while the child is in use.
  c10::intrusive_ptr<c10d::Store> last_child_store_;
  c10::weak_intrusive_ptr<c10d::Backend> last_child_;
  std::atomic<bool> timed_{false};
  const std::shared_ptr<Observer> observer_ = std::make_shared<Observer>();
};

}  // namespace hetcomm
