#include "schedule.h"

#include <atomic>
#include <numeric>
#include <utility>

namespace covey {
namespace {

// Distribution of `total` items to 2^Bits positions on a circle: each position gets the same
// number, and the remaining items go to the positions from `start` on, one each. Positions are
// numbered by reversed bits.
template <int Bits>
struct Circle {
  static constexpr std::uint64_t kPositions = std::uint64_t{1} << Bits;

  std::uint64_t often;
  std::uint64_t start;

  static constexpr std::uint64_t reverse(std::uint64_t number) noexcept {
    std::uint64_t reversed = 0;
    for (int i = 0; i < Bits; ++i) reversed |= ((number >> i) & 1) << (Bits - 1 - i);
    return reversed;
  }

  // The items of the position with this number.
  std::uint64_t at(std::uint64_t number) const noexcept {
    const bool more = (reverse(number) - start) % kPositions < often % kPositions;
    return often / kPositions + (more ? 1 : 0);
  }

  // The items of all positions with smaller numbers.
  std::uint64_t before(std::uint64_t number) const noexcept {
    const std::uint64_t left = often % kPositions;
    std::uint64_t count = number * (often / kPositions), begin = 0;
    // 2^n consecutive numbers from a multiple of 2^n are evenly spaced on the circle.
    for (int n = Bits - 1; n >= 0; --n) {
      const std::uint64_t run = std::uint64_t{1} << n, step = kPositions >> n;
      if ((number & run) == 0) continue;
      const std::uint64_t first =
          (reverse(begin) - start) % step;  // unsigned wrap-around is correct
      if (first < left) count += (left - first - 1) / step + 1;
      begin += run;
    }
    return count;
  }
};

using Blocks = Circle<10>;
using Spans = Circle<6>;
static_assert(Blocks::kPositions == WeightedSchedule::kBlocks);
static_assert(Spans::kPositions == WeightedSchedule::kSpansPerBlock);

std::atomic<std::uint64_t> schedules{0};

}  // namespace

void EvenSchedule::count(std::uint64_t batches, std::uint64_t* visits) const {
  const std::uint64_t slots = batches * per_batch_;
  const std::uint64_t rounds = slots / classes_;
  for (std::uint64_t i = 0; i < classes_; ++i) visits[i] += rounds;
  std::vector<std::uint64_t> remainder(slots % classes_);
  draws_.begin(rounds, remainder.size(), remainder.data());
  for (const std::uint64_t item : remainder) ++visits[item];
}

struct WeightedSchedule::Block {
  std::uint64_t number = ~std::uint64_t{0};
  std::vector<std::uint8_t> starts;  // start of each class on its circle
};

struct WeightedSchedule::Span {
  struct Place {
    std::uint32_t item;
    std::uint32_t before;  // earlier occurrences in this span
  };

  std::uint64_t schedule = ~std::uint64_t{0};
  std::uint64_t number = 0;
  Block block;
  std::vector<Place> places;  // by batch
};

WeightedSchedule::WeightedSchedule(std::uint64_t key, std::vector<std::uint64_t> quotas,
                                   std::uint64_t per_batch)
    : key_(key),
      quotas_(std::move(quotas)),
      per_batch_(per_batch),
      span_(span(quotas_.size(), per_batch)),
      number_(schedules++) {
  starts_.resize(quotas_.size());
  const Permutation order(derive(key, kBlocks), quotas_.size());
  std::uint64_t start = 0;
  for (std::uint64_t i = 0; i < quotas_.size(); ++i) {
    const std::uint64_t item = order(i);
    starts_[item] = static_cast<std::uint16_t>(start % kBlocks);
    start += quotas_[item] % kBlocks;
  }
  step_ = span_ * 618 / 1000 + 1;
  while (std::gcd(step_, span_) != 1) ++step_;
}

std::uint64_t WeightedSchedule::before(std::uint64_t item, const Block& block,
                                       std::uint64_t span) const noexcept {
  const Blocks blocks{quotas_[item], starts_[item]};
  const std::uint64_t in_cycle = block.number % kBlocks;
  const Spans spans{blocks.at(in_cycle), block.starts[item]};
  return block.number / kBlocks * quotas_[item] + blocks.before(in_cycle) +
         spans.before(span % kSpansPerBlock);
}

void WeightedSchedule::lay_out(std::uint64_t number, Block& block) const {
  block.number = number;
  block.starts.resize(quotas_.size());
  const Permutation order(derive(derive(key_, kBlocks + 1), number), quotas_.size());
  std::uint64_t start = 0;
  for (std::uint64_t i = 0; i < quotas_.size(); ++i) {
    const std::uint64_t item = order(i);
    block.starts[item] = static_cast<std::uint8_t>(start % kSpansPerBlock);
    start += Blocks{quotas_[item], starts_[item]}.at(number % kBlocks) % kSpansPerBlock;
  }
}

void WeightedSchedule::lay_out(std::uint64_t number, Span& span) const {
  const std::uint64_t classes = quotas_.size(), block = number / kSpansPerBlock;
  if (span.schedule != number_ || span.block.number != block) lay_out(block, span.block);
  span.schedule = number_;
  span.number = number;
  span.places.resize(span_ * per_batch_);
  const std::uint64_t key = derive(derive(key_, kBlocks + 2), number);
  const Permutation order(key, classes);
  // The first column is at a random time, so that rows do not always end at the same one.
  const std::uint64_t first = derive(key, classes) % span_;
  std::uint64_t row = 0, time = first;
  for (std::uint64_t i = 0; i < classes; ++i) {
    const std::uint64_t item = order(i);
    const std::uint64_t of_block = Blocks{quotas_[item], starts_[item]}.at(block % kBlocks);
    const Spans spans{of_block, span.block.starts[item]};
    for (std::uint64_t left = spans.at(number % kSpansPerBlock); left > 0; --left) {
      span.places[time * per_batch_ + row].item = static_cast<std::uint32_t>(item);
      time = (time + step_) % span_;
      if (time == first) ++row;
    }
  }
  std::vector<std::uint32_t> seen(classes);
  for (Span::Place& place : span.places) place.before = seen[place.item]++;
}

// Batches are usually requested in order: each thread caches its last span.
const WeightedSchedule::Span& WeightedSchedule::find(std::uint64_t number) const {
  static thread_local Span recent;
  if (recent.schedule != number_ || recent.number != number) lay_out(number, recent);
  return recent;
}

void WeightedSchedule::draw(std::uint64_t batch, std::uint64_t* classes,
                            std::uint64_t* visits) const {
  const std::uint64_t number = batch / span_;
  const Span& span = find(number);
  const Span::Place* const places = span.places.data() + batch % span_ * per_batch_;
  for (std::uint64_t i = 0; i < per_batch_; ++i) {
    classes[i] = places[i].item;
    visits[i] = before(places[i].item, span.block, number) + places[i].before;
  }
}

void WeightedSchedule::count(std::uint64_t batches, std::uint64_t* visits) const {
  const std::uint64_t number = batches / span_, rest = batches % span_;
  Block block;
  lay_out(number / kSpansPerBlock, block);
  for (std::uint64_t i = 0; i < quotas_.size(); ++i) visits[i] += before(i, block, number);
  if (rest == 0) return;
  const Span& span = find(number);
  for (std::uint64_t i = 0; i < rest * per_batch_; ++i) ++visits[span.places[i].item];
}

}  // namespace covey
