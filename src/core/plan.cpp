#include "plan.h"

#include <algorithm>

namespace covey {
namespace {

// The parts of a seed.
enum Stream : std::uint64_t { kClasses = 1, kRecords = 2, kEpochs = 3 };

// Up to this number of units no memory is prefetched.
constexpr std::size_t kFew = 64;

// Memory for the drawn items: on the stack, if they are few.
class Room {
 public:
  explicit Room(std::size_t count) : more_(count > kFew ? count : 0) {}
  std::uint64_t* data() noexcept { return more_.empty() ? few_ : more_.data(); }

 private:
  std::uint64_t few_[kFew];
  std::vector<std::uint64_t> more_;
};

}  // namespace

BalancedPlan::BalancedPlan(std::uint64_t seed, const ClassList& classes,
                           std::size_t classes_per_batch, std::size_t records_per_class)
    : Plan(classes_per_batch, records_per_class), seed_(seed), classes_(classes) {
  parts_.push_back(std::make_shared<const Part>(Part{0, make_schedule(0, {}), {}}));
}

std::shared_ptr<const Schedule> BalancedPlan::make_schedule(
    std::uint64_t begin, std::vector<std::uint64_t> quotas) const {
  const std::uint64_t key = derive(derive(seed_, kClasses), begin);
  if (quotas.empty()) return std::make_shared<EvenSchedule>(key, classes_.count, units());
  return std::make_shared<WeightedSchedule>(key, std::move(quotas), units());
}

BalancedPlan BalancedPlan::reweighted(std::uint64_t batch,
                                      std::vector<std::uint64_t> quotas) const {
  BalancedPlan other = *this;
  while (other.parts_.size() > 1 && other.parts_.back()->begin >= batch) other.parts_.pop_back();
  if (batch == 0) other.parts_.clear();
  Part part{batch, make_schedule(batch, std::move(quotas)), {}};
  if (batch > 0) part.visits = other.count(batch);
  other.parts_.push_back(std::make_shared<const Part>(std::move(part)));
  return other;
}

const BalancedPlan::Part& BalancedPlan::part_of(std::uint64_t batch) const noexcept {
  std::size_t at = parts_.size() - 1;
  while (parts_[at]->begin > batch) --at;
  return *parts_[at];
}

void BalancedPlan::draw(std::uint64_t batch, std::size_t begin, std::size_t end, std::int64_t* ids,
                        std::int64_t* labels) const {
  const Part& part = part_of(batch);
  const std::uint64_t key = derive(seed_, kRecords);
  const std::uint64_t each = records_per_unit();
  Room classes(units()), visits(units()), records(each);
  part.schedule->draw(batch - part.begin, classes.data(), visits.data());
  // Classes and records are scattered in memory, and prefetched.
  for (std::size_t unit = begin; unit < end; ++unit) classes_.prefetch(classes.data()[unit]);
  std::int64_t* places = ids;
  for (std::size_t unit = begin; unit < end; ++unit) {
    const std::uint64_t which = classes.data()[unit];
    const std::uint64_t visit =
        visits.data()[unit] + (part.visits.empty() ? 0 : part.visits[which]);
    const std::uint64_t of_class = derive(key, classes_.key(which));
    Draws(of_class, classes_.records[which], each).draw(visit, records.data(), nullptr);
    for (std::uint64_t i = 0; i < each; ++i) {
      const std::uint64_t place = classes_.first[which] + records.data()[i];
      classes_.prefetch_id(place);
      *places++ = static_cast<std::int64_t>(place);
    }
    *labels++ = classes_.labels[which];
  }
  for (; ids < places; ++ids) *ids = classes_.id(static_cast<std::uint64_t>(*ids));
}

std::vector<std::uint64_t> BalancedPlan::count(std::uint64_t batches) const {
  std::vector<std::uint64_t> visits(classes_.count);
  if (batches == 0) return visits;
  const Part& part = part_of(batches - 1);
  if (!part.visits.empty()) visits = part.visits;
  part.schedule->count(batches - part.begin, visits.data());
  return visits;
}

std::size_t EpochPlan::units_of(std::uint64_t batch) const noexcept {
  if (remainder_ != Remainder::keep) return units();
  const std::uint64_t begin = batch % batches() * units();
  return static_cast<std::size_t>(std::min<std::uint64_t>(units(), records_ - begin));
}

void EpochPlan::draw(std::uint64_t batch, std::size_t begin, std::size_t end, std::int64_t* ids,
                     std::int64_t*) const {
  const bool is_stream = remainder_ == Remainder::fill;
  const std::uint64_t key = derive(seed_, kEpochs);
  const std::uint64_t first = (is_stream ? batch : batch % batches()) * units();
  Room places(units());
  if (!shuffled_) {
    for (std::size_t i = begin; i < end; ++i) places.data()[i] = (first + i) % records_;
  } else if (is_stream) {
    Draws(key, records_, units()).draw(batch, places.data(), nullptr);
  } else {
    const Permutation order(derive(key, batch / batches()), records_);
    order.fill(first + begin, end - begin, places.data() + begin);
  }
  for (std::size_t i = begin; i < end; ++i) *ids++ = static_cast<std::int64_t>(places.data()[i]);
}

}  // namespace covey
