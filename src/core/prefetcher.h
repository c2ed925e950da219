// Numbered steps of work, done ahead of whoever takes the results in order, by a few threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace covey {

// Each step is done by one thread from its beginning to its end: what is handed over between
// threads is a whole batch, never less.
//
// Results are written into sets of buffers, which the consumer gives and gets back with a result;
// they are all that bounds how far the threads run ahead.
class Prefetcher {
 public:
  // Does a step, into a set of buffers; tells whether it could. Called by many threads at once.
  using Work = std::function<bool(std::uint64_t step, std::size_t set)>;

  struct Result {
    std::size_t set;
    bool done;
  };

  // Of the steps [0, steps).
  Prefetcher(Work work, std::uint64_t steps, std::size_t threads);
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  ~Prefetcher() { stop(); }

  // Lets a set of buffers be written into.
  void give(std::size_t set);

  // The result of the next step, if it is there.
  std::optional<Result> poll();

  // The same, if it comes within that time. There must be a set for it.
  std::optional<Result> wait(std::chrono::milliseconds longest);

  // Ends the threads, each after the step that it is at.
  void stop();

 private:
  enum class State : std::uint8_t { open, failed, done };
  struct Step {
    std::size_t set;
    State state;
  };

  bool is_there() const noexcept {
    return taken_ < claimed_ && begun_[taken_ % begun_.size()].state != State::open;
  }
  Result take();
  void make_room();
  void run();

  const Work work_;
  const std::uint64_t steps_;

  std::mutex lock_;
  std::condition_variable may_work_;
  std::condition_variable may_take_;
  std::vector<std::size_t> free_;  // sets
  std::vector<Step> begun_;        // a ring of the steps from taken_ to claimed_
  std::uint64_t claimed_ = 0;
  std::uint64_t taken_ = 0;
  std::size_t sets_ = 0;      // that are here
  std::size_t sleeping_ = 0;  // threads that wait for a set
  bool consumer_waits_ = false;
  bool stopped_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace covey
