#include "plan.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "check.h"

namespace covey::testing {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr std::uint64_t kFar = std::uint64_t{1} << 50;

// Classes; the records of class i are i * 1000, i * 1000 + 1, ...
class Classes {
 public:
  explicit Classes(const std::vector<std::uint64_t>& sizes) : records(sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      labels.push_back(static_cast<std::int64_t>(i) * 3 - 5);
      first.push_back(narrow.size());
      for (std::uint64_t j = 0; j < sizes[i]; ++j) {
        narrow.push_back(static_cast<std::uint32_t>(i * 1000 + j));
        wide.push_back((std::uint64_t{1} << 40) + i * 1000 + j);
      }
    }
  }

  ClassList list(bool is_wide = false) const {
    ClassList list;
    list.count = records.size();
    list.labels = labels.data();
    list.first = first.data();
    list.records = records.data();
    list.by_class = is_wide ? static_cast<const void*>(wide.data()) : narrow.data();
    list.wide = is_wide;
    return list;
  }

  std::vector<std::int64_t> labels;
  std::vector<std::uint64_t> first, records;
  std::vector<std::uint32_t> narrow;
  std::vector<std::uint64_t> wide;
};

struct Batch {
  Ids ids;
  Ids labels;
  bool operator==(const Batch&) const = default;
};

Batch draw(const Plan& plan, std::uint64_t batch) {
  Batch found;
  found.ids.resize(plan.units_of(batch) * plan.records_per_unit());
  found.labels.resize(plan.knows_labels() ? plan.units_of(batch) : 0);
  plan.draw(batch, 0, plan.units_of(batch), found.ids.data(), found.labels.data());
  return found;
}

std::vector<std::uint64_t> equal_quotas(std::size_t classes, std::uint64_t per_batch) {
  const std::uint64_t total =
      WeightedSchedule::kSpans * WeightedSchedule::span(classes, per_batch) * per_batch;
  std::vector<std::uint64_t> quotas(classes, total / classes);
  quotas[0] += total % classes;
  return quotas;
}

TEST(balanced_plan_draws_records_of_its_classes) {
  const Classes classes({4, 9, 5, 40, 7, 6});
  const BalancedPlan plan(1, classes.list(), 3, 4);
  for (const std::uint64_t start : {std::uint64_t{0}, kFar}) {
    for (std::uint64_t step = start; step < start + 50; ++step) {
      const Batch batch = draw(plan, step);
      CHECK(std::set(batch.labels.begin(), batch.labels.end()).size() == 3);
      CHECK(std::set(batch.ids.begin(), batch.ids.end()).size() == 12);
      for (std::size_t i = 0; i < 12; ++i) {
        const std::int64_t which = batch.ids[i] / 1000;
        CHECK(batch.labels[i / 4] == which * 3 - 5);
        CHECK(batch.ids[i] % 1000 <
              static_cast<std::int64_t>(classes.records[static_cast<std::size_t>(which)]));
      }
    }
  }
}

TEST(balanced_plan_of_64_bit_ids) {
  const Classes classes({4, 9, 5, 40});
  const BalancedPlan narrow(1, classes.list(), 2, 3), wide(1, classes.list(true), 2, 3);
  for (std::uint64_t step = 0; step < 20; ++step) {
    Batch expected = draw(narrow, step);
    for (std::int64_t& id : expected.ids) id += std::int64_t{1} << 40;
    CHECK(draw(wide, step) == expected);
  }
}

TEST(balanced_plan_draws_the_same_records_for_other_labels) {
  const Classes classes({4, 9, 5, 40, 7, 6});
  const Ids others{8, 3, 0, -1, 90, 7};
  ClassList list = classes.list();
  const BalancedPlan plan(1, list, 3, 4);
  list.keys = list.labels;
  list.labels = others.data();
  const BalancedPlan relabelled(1, list, 3, 4);
  for (std::uint64_t step = 0; step < 40; ++step) {
    const Batch expected = draw(plan, step), found = draw(relabelled, step);
    CHECK(found.ids == expected.ids);
    for (std::size_t i = 0; i < 3; ++i) {
      const auto which = static_cast<std::size_t>((expected.labels[i] + 5) / 3);
      CHECK(found.labels[i] == others[which]);
    }
  }
}

TEST(balanced_plan_draws_a_part_of_a_batch) {
  const Classes classes({4, 9, 5, 40, 7, 6});
  for (const bool weighted : {false, true}) {
    auto quotas = weighted ? equal_quotas(6, 4) : std::vector<std::uint64_t>();
    const BalancedPlan plan =
        BalancedPlan(1, classes.list(), 4, 3).reweighted(0, std::move(quotas));
    for (std::uint64_t step = 0; step < 20; ++step) {
      const Batch whole = draw(plan, step);
      for (std::size_t begin = 0; begin <= 4; ++begin) {
        for (std::size_t end = begin; end <= 4; ++end) {
          Ids ids((end - begin) * 3), labels(end - begin);
          plan.draw(step, begin, end, ids.data(), labels.data());
          CHECK(std::equal(ids.begin(), ids.end(),
                           whole.ids.begin() + static_cast<std::ptrdiff_t>(begin * 3)));
          CHECK(std::equal(labels.begin(), labels.end(),
                           whole.labels.begin() + static_cast<std::ptrdiff_t>(begin)));
        }
      }
    }
  }
}

// More than fit into the buffers on the stack.
TEST(balanced_plan_of_many_classes_and_records) {
  const Classes classes(std::vector<std::uint64_t>(130, 100));
  const BalancedPlan plan(1, classes.list(), 100, 90);
  for (std::uint64_t step = 0; step < 5; ++step) {
    const Batch batch = draw(plan, step);
    CHECK(std::set(batch.labels.begin(), batch.labels.end()).size() == 100);
    CHECK(std::set(batch.ids.begin(), batch.ids.end()).size() == 9000);
  }
}

TEST(balanced_plan_counts_visits_across_changes) {
  const Classes classes({4, 9, 5, 40, 7, 6});
  BalancedPlan plan(1, classes.list(), 2, 3);
  std::vector<std::uint64_t> heavy = equal_quotas(6, 2);
  heavy[1] += heavy[2];
  heavy[2] = 0;
  plan = plan.reweighted(11, heavy).reweighted(30, {}).reweighted(31, equal_quotas(6, 2));
  std::vector<std::uint64_t> seen(6);
  std::vector<std::set<std::int64_t>> pass(6);
  for (std::uint64_t step = 0; step < 100; ++step) {
    CHECK(plan.count(step) == seen);
    const Batch batch = draw(plan, step);
    for (std::size_t unit = 0; unit < 2; ++unit) {
      const auto which = static_cast<std::size_t>((batch.labels[unit] + 5) / 3);
      CHECK(!(which == 2 && step >= 11 && step < 30));
      ++seen[which];
      for (std::size_t i = 0; i < 3; ++i) {  // each record once before any is repeated
        CHECK(pass[which].insert(batch.ids[unit * 3 + i]).second);
        if (pass[which].size() == classes.records[which]) pass[which].clear();
      }
    }
  }
}

TEST(balanced_plan_change_applies_to_later_steps) {
  const Classes classes({4, 9, 5, 40, 7, 6});
  const BalancedPlan plan(1, classes.list(), 2, 3);
  const BalancedPlan later = plan.reweighted(20, equal_quotas(6, 2));
  const BalancedPlan earlier = later.reweighted(10, {});
  const BalancedPlan at_once = plan.reweighted(10, {});
  const BalancedPlan restarted = later.reweighted(0, {});
  for (std::uint64_t step = 0; step < 60; ++step) {
    if (step < 20) CHECK(draw(later, step) == draw(plan, step));
    if (step < 10) CHECK(draw(earlier, step) == draw(plan, step));
    CHECK(draw(earlier, step) == draw(at_once, step));
    CHECK(draw(restarted, step) == draw(plan, step));
  }
}

TEST(epoch_plan_has_each_record_once_per_epoch) {
  for (const std::uint64_t records : {1, 5, 12, 33, 100}) {
    for (const std::size_t batch_size : {1, 4, 12, 40}) {
      for (const bool shuffled : {false, true}) {
        const EpochPlan plan(3, records, batch_size, Remainder::keep, shuffled);
        const std::uint64_t batches = (records + batch_size - 1) / batch_size;
        for (const std::uint64_t epoch : {std::uint64_t{0}, std::uint64_t{1}, kFar}) {
          std::set<std::int64_t> seen;
          std::size_t count = 0;
          for (std::uint64_t i = 0; i < batches; ++i) {
            const Ids ids = draw(plan, epoch * batches + i).ids;
            CHECK(ids.size() == batch_size || i == batches - 1);
            seen.insert(ids.begin(), ids.end());
            count += ids.size();
          }
          CHECK(count == records && seen.size() == records);
          CHECK(*seen.begin() == 0 && *seen.rbegin() == static_cast<std::int64_t>(records) - 1);
        }
      }
    }
  }
}

TEST(epoch_plan_drops_or_fills_the_last_batch) {
  const EpochPlan dropped(3, 10, 4, Remainder::drop, false),
      filled(3, 10, 4, Remainder::fill, false);
  CHECK(draw(dropped, 1).ids == Ids{4, 5, 6, 7});
  CHECK(draw(dropped, 2).ids == Ids{0, 1, 2, 3});
  CHECK(draw(filled, 2).ids == Ids{8, 9, 0, 1});
  CHECK(draw(filled, 5 * kFar).ids == Ids{0, 1, 2, 3});
  const EpochPlan shuffled(3, 10, 4, Remainder::fill, true);
  for (std::uint64_t step = kFar; step < kFar + 40; ++step) {
    const Ids ids = draw(shuffled, step).ids;
    CHECK(std::set(ids.begin(), ids.end()).size() == 4);
  }
}

TEST(shares_of_ranks_partition_the_batch) {
  for (std::uint64_t world = 1; world <= 9; ++world) {
    for (std::size_t units = 0; units <= 20; ++units) {
      std::size_t end = 0;
      for (std::uint64_t rank = 0; rank < world; ++rank) {
        const auto [from, to] = Rank{0, rank, world, true}.units(units);
        CHECK(from == end && to - from <= units / world + 1 && to - from >= units / world);
        end = to;
      }
      CHECK(end == units);
    }
  }
}

TEST(shares_of_independent_ranks) {
  const Rank share{100, 2, 6, false};
  CHECK(share.batch(0) == 102 && share.batch(3) == 120);
  CHECK(share.units(7) == (std::pair<std::size_t, std::size_t>{0, 7}));
  CHECK((Rank{100, 2, 6, true}).batch(3) == 103);
}

}  // namespace
}  // namespace covey::testing
