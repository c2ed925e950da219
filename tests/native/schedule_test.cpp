#include "schedule.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <vector>

#include "check.h"

namespace covey::testing {
namespace {

using Numbers = std::vector<std::uint64_t>;

constexpr std::uint64_t kSpans = WeightedSchedule::kSpans;

std::uint64_t sum_of(const Numbers& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{0});
}

// The quotas of classes of these weights in a cycle; the remainder goes to a light class.
Numbers quotas_of(const Numbers& weights, std::uint64_t per_batch) {
  const std::uint64_t span = WeightedSchedule::span(weights.size(), per_batch);
  const std::uint64_t total = kSpans * span * per_batch;
  Numbers quotas;
  for (const std::uint64_t weight : weights) quotas.push_back(total / sum_of(weights) * weight);
  const auto lightest = std::find(weights.begin(), weights.end(), 1U) - weights.begin();
  quotas.at(static_cast<std::size_t>(lightest)) += total - sum_of(quotas);
  return quotas;
}

// Draws batches in order, and compares the visits with those of the schedule.
bool is_true_to_itself(const Schedule& schedule, std::uint64_t classes, std::uint64_t per_batch,
                       std::uint64_t batches) {
  Numbers seen(classes), drawn(per_batch), visits(per_batch);
  for (std::uint64_t batch = 0; batch < batches; ++batch) {
    Numbers counted(classes);
    schedule.count(batch, counted.data());
    if (counted != seen) return false;
    schedule.draw(batch, drawn.data(), visits.data());
    for (std::uint64_t i = 0; i < per_batch; ++i) {
      if (visits[i] != counted.at(drawn[i])) return false;
      if (seen[drawn[i]]++ != visits[i]) return false;  // also if a class is repeated
    }
  }
  return true;
}

Numbers count(const Schedule& schedule, std::uint64_t classes, std::uint64_t batches) {
  Numbers visits(classes);
  schedule.count(batches, visits.data());
  return visits;
}

TEST(even_schedule_counts_what_it_draws) {
  for (std::uint64_t classes = 1; classes <= 14; ++classes) {
    for (std::uint64_t per_batch = 1; per_batch <= classes; ++per_batch) {
      const EvenSchedule schedule(classes, classes, per_batch);
      CHECK(is_true_to_itself(schedule, classes, per_batch, 60));
    }
  }
}

TEST(even_schedule_visits_differ_by_one_at_most) {
  const EvenSchedule schedule(1, 37, 8);
  for (const std::uint64_t far : {std::uint64_t{0}, std::uint64_t{1} << 50}) {
    for (std::uint64_t batch = far; batch < far + 100; ++batch) {
      const Numbers visits = count(schedule, 37, batch);
      const auto [least, most] = std::minmax_element(visits.begin(), visits.end());
      CHECK(*most - *least <= 1);
      CHECK(*least == batch * 8 / 37);
    }
  }
}

TEST(weighted_schedule_counts_what_it_draws) {
  for (const Numbers& weights :
       {Numbers{1}, Numbers{1, 1}, Numbers{1, 2, 3}, Numbers{3, 0, 1, 2, 5},
        Numbers{1, 1, 1, 1, 1, 1, 1}, Numbers{9, 1, 8, 2, 7, 3, 6, 4, 5}}) {
    const std::uint64_t heaviest = *std::max_element(weights.begin(), weights.end());
    // Each class at most once per batch.
    for (std::uint64_t per_batch = 1; per_batch * heaviest <= sum_of(weights); ++per_batch) {
      const WeightedSchedule schedule(9, quotas_of(weights, per_batch), per_batch);
      CHECK(is_true_to_itself(schedule, weights.size(), per_batch, 700));
    }
  }
}

TEST(weighted_schedule_of_one_cycle_has_the_quotas) {
  const Numbers quotas = quotas_of({2, 0, 3, 1, 4}, 2);
  const WeightedSchedule schedule(7, quotas, 2);
  const std::uint64_t cycle = kSpans * 3;
  Numbers seen(5), drawn(2), visits(2);
  for (std::uint64_t batch = 0; batch < cycle; ++batch) {
    schedule.draw(batch, drawn.data(), visits.data());
    for (const std::uint64_t thing : drawn) ++seen.at(thing);
  }
  CHECK(seen == quotas);
  CHECK(count(schedule, 5, cycle) == quotas);
  Numbers often = count(schedule, 5, cycle * 1'000'000);
  for (std::uint64_t& each : often) each /= 1'000'000;
  CHECK(often == quotas);
}

TEST(weighted_schedule_counts_at_large_steps) {
  const Numbers quotas = quotas_of({5, 1, 4, 2, 3, 3, 2, 4, 1, 5}, 3);
  const WeightedSchedule schedule(8, quotas, 3);
  const std::uint64_t far = (std::uint64_t{1} << 52) + 12345;
  Numbers seen = count(schedule, 10, far), drawn(3), visits(3);
  for (std::uint64_t batch = far; batch < far + 2000; ++batch) {
    schedule.draw(batch, drawn.data(), visits.data());
    for (std::uint64_t i = 0; i < 3; ++i) CHECK(visits[i] == seen.at(drawn[i])++);
  }
  CHECK(count(schedule, 10, far + 2000) == seen);
}

TEST(weighted_schedule_has_the_quotas_of_every_span) {
  const Numbers quotas = quotas_of({5, 1, 4, 2, 3, 3, 2, 4, 1, 5}, 3);
  const WeightedSchedule schedule(8, quotas, 3);
  for (std::uint64_t span = 0; span < 3000; ++span) {
    const Numbers before = count(schedule, 10, span * 4), after = count(schedule, 10, span * 4 + 4);
    for (std::size_t i = 0; i < 10; ++i) {
      const std::uint64_t times = after[i] - before[i];
      CHECK(times == quotas[i] / kSpans || times == quotas[i] / kSpans + 1);
    }
  }
}

TEST(weighted_schedule_of_a_class_in_every_batch) {
  const std::uint64_t most = kSpans * 2;
  const WeightedSchedule schedule(1, {most, 1, most - 1, 0}, 2);
  Numbers drawn(2), visits(2);
  for (std::uint64_t batch = 0; batch < 3000; ++batch) {
    schedule.draw(batch, drawn.data(), visits.data());
    CHECK(drawn[0] != drawn[1] && (drawn[0] == 0 || drawn[1] == 0));
    CHECK(visits[drawn[0] == 0 ? 0 : 1] == batch);
  }
}

TEST(weighted_schedule_is_shared_by_threads) {
  const WeightedSchedule schedule(3, quotas_of({1, 2, 3, 4, 5, 5, 4, 3, 2, 1}, 2), 2);
  const auto ask = [&](std::uint64_t times, Numbers* out) {
    for (std::uint64_t i = 0; i < 1500; ++i) {
      Numbers drawn(2), visits(2);
      schedule.draw(i * times % 1500, drawn.data(), visits.data());
      std::copy(drawn.begin(), drawn.end(), out->begin() + static_cast<std::ptrdiff_t>(i * 2));
    }
  };
  Numbers expected(3000);
  ask(1, &expected);
  std::vector<Numbers> found(4, Numbers(3000));
  std::vector<std::thread> threads;
  const std::uint64_t orders[] = {1, 7, 601, 1499};  // none of which divides 1500
  for (std::size_t i = 0; i < 4; ++i) threads.emplace_back(ask, orders[i], &found[i]);
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::uint64_t j = 0; j < 3000; ++j) {
      CHECK(found[i][j] == expected[j / 2 * orders[i] % 1500 * 2 + j % 2]);
    }
  }
}

}  // namespace
}  // namespace covey::testing
