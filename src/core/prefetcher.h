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

// The parts of a step are processed by several threads. Results are written into sets of buffers,
// which the consumer supplies and gets back with a result; their number limits the prefetching.
class Prefetcher {
 public:
  // Processes a part of a step into a set of buffers, and returns whether it succeeded. Called by
  // all threads.
  using Work = std::function<bool(std::uint64_t step, std::size_t part, std::size_t set)>;

  struct Result {
    std::size_t set;
    bool done;
  };

  // Processes the steps [0, steps), each in `parts` parts; without threads, wait() processes them.
  Prefetcher(Work work, std::uint64_t steps, std::size_t threads, std::size_t parts = 1);
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  ~Prefetcher() { stop(); }

  // Supplies a set of buffers.
  void give(std::size_t set);

  // The result of the next step, if it is ready.
  std::optional<Result> poll();

  // The same, after waiting for at most `longest`. The step must have a set.
  std::optional<Result> wait(std::chrono::milliseconds longest);

  // Stops the threads, each after its current part.
  void stop();

 private:
  struct Step {
    std::size_t set;
    std::size_t open;  // parts that are not processed yet
    bool failed;
  };

  bool is_there() const noexcept {
    return taken_ < claimed_ && begun_[taken_ % begun_.size()].open == 0;
  }
  bool may_claim() const noexcept { return claimed_part_ > 0 || !free_.empty(); }
  Result take();
  void make_room();
  void run();
  void process(std::unique_lock<std::mutex>& guard);

  const Work work_;
  const std::uint64_t steps_;
  const std::size_t parts_;
  const bool has_threads_;

  std::mutex lock_;
  std::condition_variable may_work_;
  std::condition_variable may_take_;
  std::vector<std::size_t> free_;  // sets
  std::vector<Step> begun_;        // a ring buffer of the steps from taken_ to claimed_
  std::uint64_t claimed_ = 0;      // steps of which all parts are claimed
  std::size_t claimed_part_ = 0;   // claimed parts of the step `claimed_`
  std::uint64_t taken_ = 0;
  std::size_t sets_ = 0;      // supplied and not taken
  std::size_t sleeping_ = 0;  // threads that wait for a set
  bool consumer_waits_ = false;
  bool stopped_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace covey
