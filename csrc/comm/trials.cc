// Calls with an automatic codec: what their codec does decides whether later calls keep it.

#include <algorithm>

#include "base/log.h"
#include "base/text.h"
#include "bootstrap/group.h"
#include "comm/communicator.h"

namespace hetcomm {
namespace {

std::string in_words(const std::string& codec, const std::string& trial,
                     const CodecFigures& figures, bool pays, int64_t from) {
  const std::string share = format_fixed(static_cast<double>(figures.share()) / 10, 1);
  const std::string rate = figures.work == 0
                               ? "devices encode"
                               : format_fixed(static_cast<double>(figures.rate()) / 1e9, 2) +
                                     " GB/s on the busiest rank";
  return "codec " + codec + ", " + trial + ": measured " + share + " % of the bytes, " + rate +
         "; " +
         (pays ? "the group goes on encoding"
               : "that saves too little time, so nothing is encoded from call " +
                     std::to_string(from) + " of that size on");
}

}  // namespace

void Communicator::take_plan(const Spec& spec) {
  auto plan = group_->planner->plan(spec, rank());
  last_trial_ = plan->auto_codec ? make_trial(spec) : nullptr;
  last_plan_ = std::move(plan);
}

std::shared_ptr<CodecTrial> Communicator::make_trial(const Spec& spec) {
  const std::string name = group_->planner->class_name(spec);
  const auto held = group_->executor->lock();
  std::shared_ptr<CodecTrial>& trial = group_->queue->trials[name];
  if (trial) return trial;
  trial = std::make_shared<CodecTrial>(
      name, [planner = group_->planner, rank = rank(), spec](const CodecTrial& of, int64_t round,
                                                             const CodecFigures& figures) {
        const bool pays = planner->codec_pays(spec, figures);
        if (rank == 0 && figures.plain > 0 && (round == 1 || !pays)) {
          log(LogLevel::info,
              in_words(planner->codec_for(spec).codec->name(), of.name(), figures, pays,
                       CodecTrial::first_call(round)),
              rank);
        }
        return pays;
      });
  return trial;
}

std::shared_ptr<Run> Communicator::make_trial_run(Run::Buffers buffers, const Operation& operation,
                                                  const CallOptions& options) {
  Run::TrialCall call{last_trial_, last_trial_->calls + 1, nullptr};
  const bool decided = last_trial_->decided(call.number);
  if (!decided || !last_trial_->encodes(call.number)) {
    call.plain = group_->planner->plain_plan(last_plan_->spec, rank());
  }
  if (decided && call.plain) return make_run(call.plain, buffers, operation, options);
  return make_run(last_plan_, buffers, operation, options, call);
}

void Communicator::count_trial_call() {
  const int64_t round = CodecTrial::reported_by(++last_trial_->calls);
  if (round == 0) return;
  // The rank's share of its host's processors, as in the cost model.
  const int host = topology().host_of(rank());
  const auto ranks = static_cast<int64_t>(topology().hosts()[host].size());
  const int64_t cores = std::min<int64_t>(ranks, topology().processors(host));
  CodecFigures figures = last_trial_->take_figures();
  figures.work = figures.work * ranks / cores;
  group_->health->report(last_trial_->name(), round, figures);
}

}  // namespace hetcomm
