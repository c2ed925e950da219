// Prefetched steps: in order, each once, never into buffers in use.
#include "prefetcher.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"

namespace covey::testing {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong{60'000};  // only reached if a test fails

// An event that threads wait for.
class Door {
 public:
  void open() {
    {
      const std::lock_guard guard(lock_);
      open_ = true;
    }
    opened_.notify_all();
  }
  void wait() {
    std::unique_lock guard(lock_);
    opened_.wait(guard, [this] { return open_; });
  }

 private:
  std::mutex lock_;
  std::condition_variable opened_;
  bool open_ = false;
};

// Sets of buffers of steps in parts: each part is written once, by one thread.
struct Sets {
  explicit Sets(std::size_t count, std::size_t parts = 1)
      : written(count, std::vector<std::uint64_t>(parts)), calls(count) {}

  Prefetcher::Work work() {
    return [this](std::uint64_t step, std::size_t part, std::size_t set) {
      written[set][part] = step;
      ++calls[set];
      ++done;
      return true;
    };
  }
  // Whether every part of the step was written, and none twice; the set can be used again.
  bool take(std::uint64_t step, std::size_t set) {
    const std::size_t parts = written[set].size();
    return calls[set].exchange(0) == parts &&
           written[set] == std::vector<std::uint64_t>(parts, step);
  }

  std::vector<std::vector<std::uint64_t>> written;  // not atomic: a sanitizer detects races
  std::vector<std::atomic<std::size_t>> calls;
  std::atomic<std::uint64_t> done = 0;
};

TEST(buffers_in_use_are_not_written) {
  const std::size_t count = 6;
  Sets sets(200);
  Prefetcher ahead(sets.work(), 200, 3);
  for (std::size_t set = 0; set < count; ++set) ahead.give(set);
  std::vector<std::size_t> kept;
  for (std::uint64_t step = 0; step < 200; ++step) {
    const auto result = ahead.wait(kLong);
    CHECK(result.has_value());
    if (!result) return;
    kept.push_back(result->set);
    if (count + step < 200) ahead.give(count + step);  // a set for the next step
  }
  CHECK(std::set<std::size_t>(kept.begin(), kept.end()).size() == kept.size());
  for (std::uint64_t step = 0; step < kept.size(); ++step) CHECK(sets.take(step, kept[step]));
}

TEST(wait_after_a_timeout) {
  Door door;
  std::atomic<int> begun = 0;
  Prefetcher ahead(
      [&](std::uint64_t, std::size_t, std::size_t) {
        ++begun;
        door.wait();
        return true;
      },
      10, 2);
  CHECK(!ahead.poll());  // no set was supplied
  ahead.give(0);
  ahead.give(1);
  CHECK(!ahead.poll());
  CHECK(!ahead.wait(milliseconds(5)));
  door.open();
  for (int step = 0; step < 10; ++step) {
    const auto result = ahead.wait(kLong);
    CHECK(result && result->done);
    if (result) ahead.give(result->set);
  }
  CHECK(begun == 10);
}

TEST(later_steps_wait_for_an_earlier_one) {
  Door door;
  std::atomic<std::uint64_t> done = 0;
  Prefetcher ahead(
      [&](std::uint64_t step, std::size_t, std::size_t) {
        if (step == 0) door.wait();
        ++done;
        return true;
      },
      8, 2);
  for (std::size_t set = 0; set < 8; ++set) ahead.give(set);
  while (done < 7) std::this_thread::yield();  // all but the first
  CHECK(!ahead.poll());
  door.open();
  for (int step = 0; step < 8; ++step) CHECK(ahead.wait(kLong).has_value());
}

TEST(stop_waits_for_parts_in_flight) {
  for (const auto& [threads, parts] : {std::pair(1, 1), {3, 1}, {1, 1000}, {3, 1000}}) {
    Door door;
    std::atomic<int> begun = 0, ended = 0;
    Prefetcher ahead(
        [&](std::uint64_t, std::size_t, std::size_t) {
          ++begun;
          door.wait();
          ++ended;
          return true;
        },
        1000, threads, parts);
    for (std::size_t set = 0; set < 20; ++set) ahead.give(set);
    while (begun < threads) std::this_thread::yield();
    std::thread opener([&] { door.open(); });
    ahead.stop();
    opener.join();
    // A thread may have begun one more part before the stop.
    const int stopped = begun;
    CHECK(begun == ended);
    ahead.give(20);
    // A step of which parts are missing is not returned.
    CHECK(ahead.wait(milliseconds(1)).has_value() == (stopped >= parts));
    CHECK(begun == stopped);
    ahead.stop();  // again
  }
}

TEST(stop_ends_a_wait) {
  Prefetcher ahead([](std::uint64_t, std::size_t, std::size_t) { return true; }, 1000, 2);
  std::thread stopper([&] { ahead.stop(); });
  CHECK(!ahead.wait(kLong));  // without a set it waits until it is stopped
  stopper.join();
  CHECK(!ahead.wait(kLong));
  ahead.give(0);
  CHECK(!ahead.wait(kLong));
}

TEST(concurrent_stops) {
  for (int round = 0; round < 100; ++round) {
    Sets sets(4);
    Prefetcher ahead(sets.work(), 1'000'000, 3);
    for (std::size_t set = 0; set < 4; ++set) ahead.give(set);
    std::vector<std::thread> stoppers;
    for (int i = 0; i < 3; ++i) stoppers.emplace_back([&] { ahead.stop(); });
    while (ahead.wait(kLong)) {
    }
    for (std::thread& stopper : stoppers) stopper.join();
    CHECK(sets.done <= 4);
  }
}

TEST(fewer_steps_than_threads) {
  for (const std::uint64_t steps : {0, 1, 2}) {
    Sets sets(5);
    Prefetcher ahead(sets.work(), steps, 4);
    for (std::size_t set = 0; set < 5; ++set) ahead.give(set);
    for (std::uint64_t step = 0; step < steps; ++step) CHECK(ahead.wait(kLong).has_value());
    CHECK(!ahead.poll());
    CHECK(sets.done == steps);
  }
}

TEST(steps_in_order) {
  for (const std::size_t threads : {0, 1, 2, 5, 16}) {
    for (const std::size_t count : {1, 2, 7}) {
      for (const std::size_t parts : {1, 2, 3, 8, 33}) {
        const std::uint64_t steps = 200;
        Sets sets(count, parts);
        Prefetcher ahead(sets.work(), steps, threads, parts);
        for (std::size_t set = 0; set < count; ++set) ahead.give(set);
        for (std::uint64_t step = 0; step < steps; ++step) {
          const auto result = ahead.wait(kLong);
          CHECK(result && result->done);
          if (!result) return;
          CHECK(sets.take(step, result->set));
          CHECK(sets.done <= (step + count) * parts);
          ahead.give(result->set);
        }
        CHECK(!ahead.poll());
        CHECK(sets.done == steps * parts);
      }
    }
  }
}

TEST(number_of_buffers_changes) {
  std::mt19937_64 random(5);
  const std::uint64_t steps = 2000;
  const std::size_t parts = 5;
  Sets sets(64, parts);
  Prefetcher ahead(sets.work(), steps, 4, parts);
  std::vector<std::size_t> mine;
  for (std::size_t set = 0; set < sets.written.size(); ++set) mine.push_back(set);
  std::size_t given = 0;
  for (std::uint64_t step = 0; step < steps; ++step) {
    for (std::uint64_t more = random() % 9 + (given == 0 ? 1 : 0); !mine.empty() && more > 0;
         --more) {
      ahead.give(mine.back());
      mine.pop_back();
      ++given;
    }
    const auto result = random() % 2 == 0 ? ahead.poll() : std::nullopt;
    const auto taken = result ? result : ahead.wait(kLong);
    CHECK(taken && taken->done);
    if (!taken) return;
    CHECK(sets.take(step, taken->set));
    --given;
    mine.push_back(taken->set);
  }
  CHECK(sets.done == steps * parts);
}

TEST(failed_part_fails_its_step) {
  const std::size_t parts = 6;
  for (const std::size_t threads : {1, 4}) {
    std::vector<std::atomic<std::size_t>> calls(120);
    Prefetcher ahead(
        [&](std::uint64_t step, std::size_t part, std::size_t) {
          ++calls[step];
          if (step % 20 == part) throw std::bad_alloc();
          return step % 20 != 10 + part;
        },
        calls.size(), threads, parts);
    for (std::size_t set = 0; set < 3; ++set) ahead.give(set);
    for (std::uint64_t step = 0; step < calls.size(); ++step) {
      const auto result = ahead.wait(kLong);
      CHECK(result.has_value());
      if (!result) return;
      CHECK(result->done == (step % 20 >= parts && (step % 20 < 10 || step % 20 >= 10 + parts)));
      CHECK(calls[step] == parts);  // of a failed step too: its buffers are not in use any more
      ahead.give(result->set);
    }
  }
}

TEST(step_is_ready_when_all_parts_are) {
  Door door;
  std::atomic<std::size_t> done = 0;
  const std::size_t parts = 4;
  Prefetcher ahead(
      [&](std::uint64_t step, std::size_t part, std::size_t) {
        if (step == 0 && part == 1) door.wait();
        ++done;
        return true;
      },
      3, 2, parts);
  for (std::size_t set = 0; set < 3; ++set) ahead.give(set);
  while (done < 3 * parts - 1) std::this_thread::yield();
  CHECK(!ahead.poll());
  CHECK(!ahead.wait(milliseconds(2)));
  door.open();
  for (int step = 0; step < 3; ++step) {
    const auto result = ahead.wait(kLong);
    CHECK(result && result->done);
  }
}

TEST(destructor_between_parts) {
  for (int round = 0; round < 200; ++round) {
    Sets sets(3, 7);
    {
      Prefetcher ahead(sets.work(), 1'000'000, 3, 7);
      for (std::size_t set = 0; set < 3; ++set) ahead.give(set);
      for (int i = 0; i < round % 6; ++i) {
        const auto result = ahead.wait(kLong);
        CHECK(result && sets.take(static_cast<std::uint64_t>(i), result->set));
        if (result) ahead.give(result->set);
      }
    }
    const std::uint64_t done = sets.done;
    for (auto& each : sets.written) each.assign(7, 0);  // a sanitizer detects a thread that writes
    CHECK(sets.done == done);
  }
}

}  // namespace
}  // namespace covey::testing
