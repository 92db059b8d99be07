// Adds up the codec figures of all ranks. Rank r reports to the rank without r's lowest bit, which
// is its parent. Rank 0 has the total, and passes it down the same tree.

#include "base/log.h"
#include "health/health.h"

namespace hetcomm {
namespace {

int parent_of(int rank) { return rank & (rank - 1); }

std::vector<int> children_of(int rank, int size) {
  std::vector<int> children;
  for (int child = rank + 1; child < size && parent_of(child) == rank;) {
    children.push_back(child);
    child = rank + 2 * (child - rank);
  }
  return children;
}

}  // namespace

void Health::report(const std::string& trial, int64_t round, const CodecFigures& own) {
  std::lock_guard lock(mutex_);
  add_figures({.kind = News::Kind::figures, .trial = trial, .round = round, .figures = own});
  if (!totals_.empty()) executor_.wake_progress_thread();
}

void Health::on_figures(int origin, const News& news) {
  if (parent_of(origin) == rank_ && origin != rank_) return add_figures(news);
  if (parent_of(rank_) == origin) return pass_down(news);
  throw Error(Code::invalid_argument,
              "expected codec figures of a neighbour in the tree, got some "
              "of rank " +
                  std::to_string(origin));
}

// Of this rank, or of the subtree of one child.
void Health::add_figures(const News& news) {
  const auto key = std::make_pair(news.trial, news.round);
  Tally& tally = tallies_[key];
  tally.sum.add(news.figures);
  if (++tally.parts <= static_cast<int>(children_of(rank_, size_).size())) return;
  News sum = news;
  sum.figures = tally.sum;
  tallies_.erase(key);
  rank_ == 0 ? pass_down(sum) : control_.tell(parent_of(rank_), sum.pack());
}

void Health::pass_down(const News& total) {
  for (int child : children_of(rank_, size_)) control_.tell(child, total.pack());
  totals_.push_back(total);
}

// Without the mutex, because pricing plans takes time.
void Health::decide_trials() {
  std::vector<News> totals;
  {
    std::lock_guard lock(mutex_);
    totals.swap(totals_);
  }
  for (const News& total : totals) {
    if (take_first_call(total)) continue;
    std::shared_ptr<CodecTrial> trial;
    {
      const auto held = executor_.lock();
      const auto found = queue_->trials.find(total.trial);
      if (found != queue_->trials.end()) trial = found->second;
    }
    if (trial) {
      trial->decide(total.round, total.figures);
    } else {
      log(LogLevel::warning,
          "codec figures of a trial that this rank does not make: " + total.trial, rank_);
    }
  }
}

}  // namespace hetcomm
