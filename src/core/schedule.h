// Schedules: the classes of a batch, each equally often or according to weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "draws.h"

namespace covey {

// The distinct classes of a batch, and the number of earlier batches that have each. A function of
// the batch index; threads may share it.
class Schedule {
 public:
  virtual ~Schedule() = default;

  // The classes of a batch, and the number of earlier batches that have each.
  virtual void draw(std::uint64_t batch, std::uint64_t* classes, std::uint64_t* visits) const = 0;

  // Adds to `visits`, by class, the number of the first `batches` batches that have it.
  virtual void count(std::uint64_t batches, std::uint64_t* visits) const = 0;
};

// Every class once before any class twice.
class EvenSchedule final : public Schedule {
 public:
  EvenSchedule(std::uint64_t key, std::uint64_t classes, std::uint64_t per_batch) noexcept
      : draws_(key, classes, per_batch), classes_(classes), per_batch_(per_batch) {}

  void draw(std::uint64_t batch, std::uint64_t* classes, std::uint64_t* visits) const override {
    draws_.draw(batch, classes, visits);  // a class occurs once per round
  }
  void count(std::uint64_t batches, std::uint64_t* visits) const override;

 private:
  Draws draws_;
  std::uint64_t classes_;
  std::uint64_t per_batch_;
};

// Classes with frequencies given as quotas.
//
// Time is divided into spans of as many batches as a round of all classes needs; kSpansPerBlock
// spans are a block, and kBlocks blocks a cycle, in which a class occurs exactly `quota` times.
//
// In every block a class occurs quota / kBlocks times, and in quota % kBlocks of them once more.
// These extra occurrences are allocated on a circle of all blocks: each class takes an arc that
// starts where the arc of the previous class ends, so every block gets the same number. Blocks are
// numbered on the circle with their bits reversed, which spreads an arc evenly in time. Within a
// block, occurrences are distributed to spans in the same way, but the order on that circle differs
// in every block, so that any two classes coincide at random.
//
// In a span, the occurrences of all classes are shuffled, grouped by class, and dealt into rows of
// one position per batch: batch t gets column t of all rows. A class has at most as many
// occurrences as there are columns, so a batch has it at most once. Columns are numbered in steps
// of about 0.618 of their number, so that adjacent positions of a class are far apart in time.
class WeightedSchedule final : public Schedule {
 public:
  static constexpr std::uint64_t kBlocks = 1 << 10;
  static constexpr std::uint64_t kSpansPerBlock = 1 << 6;
  static constexpr std::uint64_t kSpans = kBlocks * kSpansPerBlock;

  // The batches per span.
  static std::uint64_t span(std::uint64_t classes, std::uint64_t per_batch) noexcept {
    return (classes + per_batch - 1) / per_batch;
  }

  // Each quota is at most kSpans * span, and their sum is per_batch times that.
  WeightedSchedule(std::uint64_t key, std::vector<std::uint64_t> quotas, std::uint64_t per_batch);

  void draw(std::uint64_t batch, std::uint64_t* classes, std::uint64_t* visits) const override;
  void count(std::uint64_t batches, std::uint64_t* visits) const override;

 private:
  struct Block;
  struct Span;

  // The number of occurrences of a class before a span; `block` is the block of the span.
  std::uint64_t before(std::uint64_t item, const Block& block, std::uint64_t span) const noexcept;
  void lay_out(std::uint64_t number, Block& block) const;
  void lay_out(std::uint64_t number, Span& span) const;
  const Span& find(std::uint64_t number) const;

  std::uint64_t key_;
  std::vector<std::uint64_t> quotas_;
  std::vector<std::uint16_t> starts_;  // start of each arc on the circle of blocks
  std::uint64_t per_batch_;
  std::uint64_t span_;
  std::uint64_t step_;    // between columns that are adjacent in time
  std::uint64_t number_;  // index of this schedule among all schedules
};

}  // namespace covey
