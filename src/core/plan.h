// Plans: the records of a batch, as a function of its index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "draws.h"
#include "guard.h"
#include "prefetch.h"
#include "schedule.h"

namespace covey {

// A batch consists of units: classes with some records each, or single records.
class Plan {
 public:
  Plan(std::size_t units, std::size_t records_per_unit) noexcept
      : units_(units), records_per_unit_(records_per_unit) {}
  virtual ~Plan() = default;

  // The units of a full batch, and the records of a unit.
  std::size_t units() const noexcept { return units_; }
  std::size_t records_per_unit() const noexcept { return records_per_unit_; }

  // The units of a batch: the last batch of an epoch may have fewer.
  virtual std::size_t units_of(std::uint64_t batch) const noexcept {
    (void)batch;
    return units_;
  }

  // The records of the units [begin, end) of a batch; and the label of each unit, in `labels`, if
  // the plan has labels.
  virtual void draw(std::uint64_t batch, std::size_t begin, std::size_t end, std::int64_t* ids,
                    std::int64_t* labels) const = 0;
  virtual bool knows_labels() const noexcept { return false; }

  // Whether the mapped memory of the plan has faulted: draws may be wrong.
  virtual bool has_faulted() const noexcept { return false; }

 private:
  std::size_t units_;
  std::size_t records_per_unit_;
};

// The classes of records. The caller owns the memory.
struct ClassList {
  std::size_t count = 0;
  const std::int64_t* labels = nullptr;
  const std::uint64_t* first = nullptr;    // by class: offset of its records in `by_class`
  const std::uint64_t* records = nullptr;  // by class: number of its records, at least one
  const void* by_class = nullptr;
  bool wide = false;  // whether record ids are 64-bit, not 32-bit
  // By class: the number that its draws are derived from; null if it is the label.
  const std::int64_t* keys = nullptr;

  void prefetch(std::uint64_t which) const noexcept {
    prefetch_line(labels + which);
    if (keys != nullptr) prefetch_line(keys + which);
    prefetch_line(first + which);
    prefetch_line(records + which);
  }
  std::uint64_t key(std::uint64_t which) const noexcept {
    return static_cast<std::uint64_t>((keys == nullptr ? labels : keys)[which]);
  }
  void prefetch_id(std::uint64_t place) const noexcept {
    prefetch_line(static_cast<const std::uint8_t*>(by_class) + place * (wide ? 8 : 4));
  }

  std::int64_t id(std::uint64_t place) const noexcept {
    return wide ? static_cast<std::int64_t>(static_cast<const std::uint64_t*>(by_class)[place])
                : static_cast<std::int64_t>(static_cast<const std::uint32_t*>(by_class)[place]);
  }
};

// Batches of some classes, with the same number of records of each.
class BalancedPlan final : public Plan {
 public:
  BalancedPlan(std::uint64_t seed, const ClassList& classes, std::size_t classes_per_batch,
               std::size_t records_per_class);

  // The same plan up to `batch`; from it on with quotas by class (see WeightedSchedule), or none.
  BalancedPlan reweighted(std::uint64_t batch, std::vector<std::uint64_t> quotas) const;

  void draw(std::uint64_t batch, std::size_t begin, std::size_t end, std::int64_t* ids,
            std::int64_t* labels) const override;
  bool knows_labels() const noexcept override { return true; }
  bool has_faulted() const noexcept override {
    return fault_count() != 0 &&
           (lies_in_fault(classes_.labels) || lies_in_fault(classes_.keys) ||
            lies_in_fault(classes_.first) || lies_in_fault(classes_.records) ||
            lies_in_fault(classes_.by_class));
  }

  std::size_t classes() const noexcept { return classes_.count; }

  // The number of the first `batches` batches that have each class.
  std::vector<std::uint64_t> count(std::uint64_t batches) const;

 private:
  // A schedule, and the batch that it starts at.
  struct Part {
    std::uint64_t begin;
    std::shared_ptr<const Schedule> schedule;
    std::vector<std::uint64_t> visits;  // by class, before the start; empty if zero
  };

  const Part& part_of(std::uint64_t batch) const noexcept;
  std::shared_ptr<const Schedule> make_schedule(std::uint64_t begin,
                                                std::vector<std::uint64_t> quotas) const;

  std::uint64_t seed_;
  ClassList classes_;
  std::vector<std::shared_ptr<const Part>> parts_;
};

// How to handle the records that do not fill the last batch of an epoch.
enum class Remainder : std::uint8_t {
  keep,  // they form a smaller batch
  drop,  // they are skipped
  fill,  // the batch is filled with records of the next epoch
};

// All records once per epoch, reshuffled in each epoch or in index order.
class EpochPlan final : public Plan {
 public:
  EpochPlan(std::uint64_t seed, std::uint64_t records, std::size_t batch_size, Remainder remainder,
            bool shuffled) noexcept
      : Plan(batch_size, 1),
        seed_(seed),
        records_(records),
        remainder_(remainder),
        shuffled_(shuffled) {}

  std::size_t units_of(std::uint64_t batch) const noexcept override;
  void draw(std::uint64_t batch, std::size_t begin, std::size_t end, std::int64_t* ids,
            std::int64_t* labels) const override;

 private:
  std::uint64_t batches() const noexcept {  // per epoch
    return (records_ + (remainder_ == Remainder::drop ? 0 : units() - 1)) / units();
  }

  std::uint64_t seed_;
  std::uint64_t records_;
  Remainder remainder_;
  bool shuffled_;
};

// The part of a plan that one of several ranks takes: some units of each batch, or whole batches.
struct Rank {
  std::uint64_t origin = 0;  // the batch at which this arrangement starts
  std::uint64_t rank = 0;
  std::uint64_t world_size = 1;
  bool split = true;

  std::uint64_t batch(std::uint64_t step) const noexcept {
    return origin + (split ? step : step * world_size + rank);
  }
  std::pair<std::size_t, std::size_t> units(std::size_t all) const noexcept {
    if (!split) return {0, all};
    return {static_cast<std::size_t>(all * rank / world_size),
            static_cast<std::size_t>(all * (rank + 1) / world_size)};
  }
};

}  // namespace covey
