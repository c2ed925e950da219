// Which classes a batch has: every class equally often, or as often as its weight says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "draws.h"

namespace covey {

// Which classes a batch has, each once, and how often each was there before. A function of the
// batch's number alone; threads may share it.
class Schedule {
 public:
  virtual ~Schedule() = default;

  // The classes of a batch; and how many batches before this one have had each.
  virtual void draw(std::uint64_t batch, std::uint64_t* classes, std::uint64_t* visits) const = 0;

  // Adds to `visits`, by class, how many of the first `batches` have each.
  virtual void count(std::uint64_t batches, std::uint64_t* visits) const = 0;
};

// Every class once before any is there twice.
class EvenSchedule final : public Schedule {
 public:
  EvenSchedule(std::uint64_t key, std::uint64_t classes, std::uint64_t per_batch) noexcept
      : draws_(key, classes, per_batch), classes_(classes), per_batch_(per_batch) {}

  void draw(std::uint64_t batch, std::uint64_t* classes, std::uint64_t* visits) const override {
    draws_.draw(batch, classes, visits);  // a class comes once a round
  }
  void count(std::uint64_t batches, std::uint64_t* visits) const override;

 private:
  Draws draws_;
  std::uint64_t classes_;
  std::uint64_t per_batch_;
};

// Classes as often as they were given quotas.
//
// Time is cut into spans of as many batches as all classes would need once; kSpansPerBlock of them
// are a block, and kBlocks of these a cycle, in which a class comes exactly `quota` times.
//
// In every block it comes quota / kBlocks times, and in quota % kBlocks of them once more. Which of
// them, is laid out round a circle of all blocks: one class takes as many as it needs, another goes
// on behind it, and so on; so every block gets equally many. Blocks are numbered round the circle
// with their bits reversed, so that what a class takes of it is spread evenly in time. What a class
// has of a block goes to its spans in the same way, but the order round that circle is another one
// in every block: any two classes meet as often as chance has it.
//
// In a span, classes are put in a shuffled order, each as often as it comes, and dealt into rows of
// one place per batch: batch t gets what is in column t of all rows. A class comes no more often
// than there are columns, so a batch has it once at the most. Columns are numbered by steps of
// about 0.618 of the whole, so that the neighbouring places of one class are far apart in time.
class WeightedSchedule final : public Schedule {
 public:
  static constexpr std::uint64_t kBlocks = 1 << 10;
  static constexpr std::uint64_t kSpansPerBlock = 1 << 6;
  static constexpr std::uint64_t kSpans = kBlocks * kSpansPerBlock;

  // The batches of a span.
  static std::uint64_t span(std::uint64_t classes, std::uint64_t per_batch) noexcept {
    return (classes + per_batch - 1) / per_batch;
  }

  // Quotas are at most kSpans * span each, and all together per_batch times that.
  WeightedSchedule(std::uint64_t key, std::vector<std::uint64_t> quotas, std::uint64_t per_batch);

  void draw(std::uint64_t batch, std::uint64_t* classes, std::uint64_t* visits) const override;
  void count(std::uint64_t batches, std::uint64_t* visits) const override;

 private:
  struct Block;
  struct Span;

  // How often a class comes before a span; `block` is the one that it is in.
  std::uint64_t before(std::uint64_t thing, const Block& block, std::uint64_t span) const noexcept;
  void lay_out(std::uint64_t number, Block& block) const;
  void lay_out(std::uint64_t number, Span& span) const;
  const Span& find(std::uint64_t number) const;

  std::uint64_t key_;
  std::vector<std::uint64_t> quotas_;
  std::vector<std::uint16_t> starts_;  // where on the circle of blocks each begins
  std::uint64_t per_batch_;
  std::uint64_t span_;
  std::uint64_t step_;    // between columns that follow each other in time
  std::uint64_t number_;  // of this schedule among all that there ever were
};

}  // namespace covey
