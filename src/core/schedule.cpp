#include "schedule.h"

#include <numeric>
#include <utility>

namespace covey {
namespace {

constexpr std::uint64_t kSpans = WeightedSchedule::kSpans;
constexpr int kBits = 16;
static_assert(kSpans == std::uint64_t{1} << kBits);

constexpr std::uint64_t reverse_bits(std::uint64_t number) noexcept {
  std::uint64_t reversed = 0;
  for (int i = 0; i < kBits; ++i) reversed |= ((number >> i) & 1) << (kBits - 1 - i);
  return reversed;
}

// How many of the places first, first + step, ... on a circle of kSpans, one turn round, are among
// the `length` from `start`; the step divides kSpans.
constexpr std::uint64_t count_on_arc(std::uint64_t first, std::uint64_t step, std::uint64_t start,
                                     std::uint64_t length) noexcept {
  const std::uint64_t to_first = (first - start) % step;  // also right below 0: step is 2^n
  return to_first < length ? (length - to_first - 1) / step + 1 : 0;
}

}  // namespace

void EvenSchedule::count(std::uint64_t batches, std::uint64_t* visits) const {
  const std::uint64_t slots = batches * per_batch_;
  const std::uint64_t rounds = slots / classes_;
  for (std::uint64_t i = 0; i < classes_; ++i) visits[i] += rounds;
  std::vector<std::uint64_t> rest(slots % classes_);
  draws_.begin(rounds, rest.size(), rest.data());
  for (const std::uint64_t thing : rest) ++visits[thing];
}

WeightedSchedule::WeightedSchedule(std::uint64_t key, std::vector<std::uint64_t> quotas,
                                   std::uint64_t per_batch)
    : key_(key),
      quotas_(std::move(quotas)),
      per_batch_(per_batch),
      span_(span(quotas_.size(), per_batch)) {
  starts_.reserve(quotas_.size());
  std::uint64_t start = 0;
  for (const std::uint64_t quota : quotas_) {
    starts_.push_back(static_cast<std::uint16_t>(start % kSpans));
    start += quota % kSpans;
  }
  step_ = span_ * 618 / 1000 + 1;
  while (std::gcd(step_, span_) != 1) ++step_;
}

std::uint64_t WeightedSchedule::within(std::uint64_t thing, std::uint64_t span) const noexcept {
  const std::uint64_t place = reverse_bits(span % kSpans);
  const bool more = (place - starts_[thing]) % kSpans < quotas_[thing] % kSpans;
  return quotas_[thing] / kSpans + (more ? 1 : 0);
}

std::uint64_t WeightedSchedule::before(std::uint64_t thing, std::uint64_t span) const noexcept {
  const std::uint64_t quota = quotas_[thing], spans = span % kSpans;
  std::uint64_t count = span / kSpans * quota + spans * (quota / kSpans);
  // Of the spans [0, spans): a run of 2^n that begins at a multiple of 2^n lies evenly round the
  // circle.
  std::uint64_t begin = 0;
  for (int n = kBits - 1; n >= 0; --n) {
    const std::uint64_t run = std::uint64_t{1} << n;
    if ((spans & run) == 0) continue;
    count += count_on_arc(reverse_bits(begin), kSpans >> n, starts_[thing], quota % kSpans);
    begin += run;
  }
  return count;
}

std::shared_ptr<const WeightedSchedule::Span> WeightedSchedule::lay_out(
    std::uint64_t number) const {
  const std::uint64_t classes = quotas_.size();
  auto made = std::make_shared<Span>();
  made->number = number;
  made->places.resize(span_ * per_batch_);
  const std::uint64_t key = derive(key_, number);
  const Permutation order(key, classes);
  // The first column stands for any time, so that rows do not always break at the same.
  const std::uint64_t first = derive(key, classes) % span_;
  std::uint64_t row = 0, time = first;
  for (std::uint64_t i = 0; i < classes; ++i) {
    const std::uint64_t thing = order(i);
    for (std::uint64_t left = within(thing, number); left > 0; --left) {
      made->places[time * per_batch_ + row].thing = static_cast<std::uint32_t>(thing);
      time = (time + step_) % span_;
      if (time == first) ++row;
    }
  }
  std::vector<std::uint32_t> seen(classes);
  for (Place& place : made->places) place.before = seen[place.thing]++;
  return made;
}

std::shared_ptr<const WeightedSchedule::Span> WeightedSchedule::find(std::uint64_t number) const {
  const std::lock_guard guard(lock_);
  if (recent_[0] != nullptr && recent_[0]->number == number) return recent_[0];
  if (recent_[1] == nullptr || recent_[1]->number != number) recent_[1] = lay_out(number);
  std::swap(recent_[0], recent_[1]);
  return recent_[0];
}

void WeightedSchedule::draw(std::uint64_t batch, std::uint64_t* classes,
                            std::uint64_t* visits) const {
  const std::uint64_t number = batch / span_;
  const std::shared_ptr<const Span> span = find(number);
  const Place* const places = span->places.data() + batch % span_ * per_batch_;
  for (std::uint64_t i = 0; i < per_batch_; ++i) {
    classes[i] = places[i].thing;
    visits[i] = before(places[i].thing, number) + places[i].before;
  }
}

void WeightedSchedule::count(std::uint64_t batches, std::uint64_t* visits) const {
  const std::uint64_t number = batches / span_, rest = batches % span_;
  for (std::uint64_t i = 0; i < quotas_.size(); ++i) visits[i] += before(i, number);
  if (rest == 0) return;
  const std::shared_ptr<const Span> span = find(number);
  for (std::uint64_t i = 0; i < rest * per_batch_; ++i) ++visits[span->places[i].thing];
}

}  // namespace covey
