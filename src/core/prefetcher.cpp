#include "prefetcher.h"

#include <chrono>
#include <utility>

namespace covey {
namespace {

constexpr std::chrono::microseconds kSpinWait{100};

}  // namespace

Prefetcher::Prefetcher(Work work, std::uint64_t steps, std::size_t threads)
    : work_(std::move(work)), steps_(steps) {
  try {
    for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  } catch (...) {  // the system has no more of them
    stop();
    throw;
  }
}

void Prefetcher::stop() {
  std::vector<std::thread> ending;
  {
    const std::lock_guard guard(lock_);
    stopped_ = true;
    ending.swap(threads_);  // if two stop it at once, one waits for them
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
    // To wake a thread costs the consumer more than to take a batch: it is done when there is some
    // work for it.
    wake = sleeping_ > 0 && 2 * free_.size() >= sets_;
  }
  if (wake) may_work_.notify_one();
}

// As many steps are under way as there are sets, at the most.
void Prefetcher::make_room() {
  free_.reserve(sets_ + 1);
  if (sets_ < begun_.size()) return;
  std::vector<Step> larger(2 * sets_ + 8);
  for (std::uint64_t i = taken_; i < claimed_; ++i) {
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
  if (sleeping_ > 0 && !free_.empty()) may_work_.notify_all();
  // To be woken for every batch costs the threads more than to make a small one: at first nobody
  // is asked to, and some batches will be there after a nap.
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
  return {step.set, step.state == State::done};
}

void Prefetcher::run() {
  std::unique_lock guard(lock_);
  for (;;) {
    ++sleeping_;
    may_work_.wait(guard, [this] { return stopped_ || claimed_ == steps_ || !free_.empty(); });
    --sleeping_;
    if (stopped_ || claimed_ == steps_) return;
    const std::uint64_t step = claimed_;
    const std::size_t set = free_.back();
    free_.pop_back();
    begun_[claimed_++ % begun_.size()] = {set, State::open};
    guard.unlock();
    bool done = false;
    try {
      done = work_(step, set);
    } catch (...) {  // no memory: the consumer will try itself, and hear of it
    }
    guard.lock();
    begun_[step % begun_.size()].state = done ? State::done : State::failed;
    if (consumer_waits_ && step == taken_) may_take_.notify_one();
  }
}

}  // namespace covey
