// Prefetching of numbered steps by worker threads; the consumer takes the results in order.
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

// Each step is processed by a single thread. Results are written into sets of buffers, which the
// consumer supplies and gets back with a result; their number limits the prefetching.
class Prefetcher {
 public:
  // Processes a step into a set of buffers, and returns whether it succeeded. Called by all
  // threads.
  using Work = std::function<bool(std::uint64_t step, std::size_t set)>;

  struct Result {
    std::size_t set;
    bool done;
  };

  // Processes the steps [0, steps).
  Prefetcher(Work work, std::uint64_t steps, std::size_t threads);
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  ~Prefetcher() { stop(); }

  // Supplies a set of buffers.
  void give(std::size_t set);

  // The result of the next step, if it is ready.
  std::optional<Result> poll();

  // The same, after waiting for at most `longest`. The step must have a set.
  std::optional<Result> wait(std::chrono::milliseconds longest);

  // Stops the threads, each after its current step.
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
  std::vector<Step> begun_;        // a ring buffer of the steps from taken_ to claimed_
  std::uint64_t claimed_ = 0;
  std::uint64_t taken_ = 0;
  std::size_t sets_ = 0;      // supplied and not taken
  std::size_t sleeping_ = 0;  // threads that wait for a set
  bool consumer_waits_ = false;
  bool stopped_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace covey
