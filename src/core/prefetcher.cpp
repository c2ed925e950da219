#include "prefetcher.h"

#include <chrono>
#include <utility>

namespace covey {
namespace {

// The time that a consumer waits before it asks to be notified.
constexpr std::chrono::microseconds kSpinWait{100};

}  // namespace

Prefetcher::Prefetcher(Work work, std::uint64_t steps, std::size_t threads, std::size_t parts)
    : work_(std::move(work)), steps_(steps), parts_(parts), has_threads_(threads > 0) {
  try {
    for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  } catch (...) {  // the system cannot create more threads
    stop();
    throw;
  }
}

void Prefetcher::stop() {
  std::vector<std::thread> ending;
  {
    const std::lock_guard guard(lock_);
    stopped_ = true;
    ending.swap(threads_);  // of concurrent calls, one joins the threads
  }
  may_work_.notify_all();
  may_take_.notify_all();
  for (std::thread& thread : ending) thread.join();
}

void Prefetcher::give(std::size_t set) {
  bool wake = false;
  {
    const std::lock_guard guard(lock_);
    make_room();
    free_.push_back(set);
    ++sets_;
    // Waking a thread costs the consumer more than taking a small batch: it waits until there is
    // enough work.
    wake = sleeping_ > 0 && (parts_ > 1 || 2 * free_.size() >= sets_);
  }
  if (wake) may_work_.notify_one();
}

// At most as many steps are in flight as there are sets.
void Prefetcher::make_room() {
  free_.reserve(sets_ + 1);
  if (sets_ < begun_.size()) return;
  std::vector<Step> larger(2 * sets_ + 8);
  for (std::uint64_t i = taken_; i < claimed_ + (claimed_part_ > 0 ? 1 : 0); ++i) {
    larger[i % larger.size()] = begun_[i % begun_.size()];
  }
  begun_ = std::move(larger);
}

std::optional<Prefetcher::Result> Prefetcher::poll() {
  const std::lock_guard guard(lock_);
  if (!is_there()) return std::nullopt;
  return take();
}

std::optional<Prefetcher::Result> Prefetcher::wait(std::chrono::milliseconds longest) {
  const auto may_go_on = [this] { return is_there() || stopped_; };
  std::unique_lock guard(lock_);
  while (!has_threads_ && !may_go_on() && claimed_ < steps_ && may_claim()) process(guard);
  if (sleeping_ > 0 && !free_.empty()) may_work_.notify_all();
  // Notifying the consumer of every batch costs the threads more than building a small one: at
  // first it waits without notification, and then several batches are ready.
  if (!may_take_.wait_for(guard, kSpinWait, may_go_on)) {
    consumer_waits_ = true;
    may_take_.wait_for(guard, longest, may_go_on);
    consumer_waits_ = false;
  }
  if (!is_there()) return std::nullopt;
  return take();
}

Prefetcher::Result Prefetcher::take() {
  const Step& step = begun_[taken_++ % begun_.size()];
  --sets_;
  return {step.set, !step.failed};
}

void Prefetcher::run() {
  std::unique_lock guard(lock_);
  for (;;) {
    ++sleeping_;
    may_work_.wait(guard, [this] { return stopped_ || claimed_ == steps_ || may_claim(); });
    --sleeping_;
    if (stopped_ || claimed_ == steps_) return;
    process(guard);
  }
}

// Claims the next part of a step, and processes it without the lock.
void Prefetcher::process(std::unique_lock<std::mutex>& guard) {
  const std::uint64_t step = claimed_;
  const std::size_t part = claimed_part_;
  if (part == 0) {
    begun_[step % begun_.size()] = {free_.back(), parts_, false};
    free_.pop_back();
  }
  const std::size_t set = begun_[step % begun_.size()].set;
  if (++claimed_part_ == parts_) {
    claimed_part_ = 0;
    ++claimed_;
  }
  const bool wake = parts_ > 1 && sleeping_ > 0 && may_claim() && claimed_ < steps_;
  guard.unlock();
  if (wake) may_work_.notify_one();
  bool done = false;
  try {
    done = work_(step, part, set);
  } catch (...) {  // out of memory: the consumer tries again, and raises
  }
  guard.lock();
  Step& begun = begun_[step % begun_.size()];
  begun.failed |= !done;
  --begun.open;
  if (consumer_waits_ && step == taken_ && begun.open == 0) may_take_.notify_one();
}

}  // namespace covey
