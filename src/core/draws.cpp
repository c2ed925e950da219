#include "draws.h"

#include <algorithm>
#include <numeric>

namespace covey {
namespace {

// Puts those first that are not in `tail`, which this sorts.
template <class Iterator>
void reorder(Iterator begin, Iterator end, std::vector<std::uint64_t> tail) {
  std::sort(tail.begin(), tail.end());
  std::stable_partition(begin, end, [&](std::uint64_t thing) {
    return !std::binary_search(tail.begin(), tail.end(), thing);
  });
}

}  // namespace

void Draws::draw(std::uint64_t number, std::uint64_t* things, std::uint64_t* rounds) const {
  const std::uint64_t slot = number * take_;
  std::uint64_t round = slot / size_, place = slot % size_;
  for (std::uint64_t i = 0; rounds != nullptr && i < take_; ++i) {
    rounds[i] = round + (place + i) / size_;
  }
  if (is_chained()) return draw_chained(round, place, things);
  for (std::uint64_t left = take_; left > 0; ++round, place = 0) {
    const std::uint64_t count = std::min(left, size_ - place);
    fill(round, place, count, things);
    things += count;
    left -= count;
  }
}

void Draws::draw_chained(std::uint64_t round, std::uint64_t place, std::uint64_t* things) const {
  Order order = whole(round);
  for (std::uint64_t i = 0; i < take_; ++i, ++place) {
    if (place == size_) {
      order = next(order, ++round);
      place = 0;
    }
    things[i] = order[place];
  }
}

void Draws::begin(std::uint64_t round, std::uint64_t count, std::uint64_t* out) const {
  if (!is_chained()) return fill(round, 0, count, out);
  const Order order = whole(round);
  std::copy_n(order.begin(), count, out);
}

void Draws::fill(std::uint64_t round, std::uint64_t place, std::uint64_t count,
                 std::uint64_t* things) const {
  const Permutation order = base(round);
  std::uint64_t reordered = 0;
  if (place < take_ && take_ <= size_ && straddling(round) != 0) {
    const Order first = head(round, order);
    reordered = std::min(count, take_ - place);
    std::copy_n(first.begin() + static_cast<std::ptrdiff_t>(place), reordered, things);
  }
  order.fill(place + reordered, count - reordered, things + reordered);
}

Draws::Order Draws::head(std::uint64_t round, const Permutation& base) const {
  const std::uint64_t shared = straddling(round);
  const Permutation before = this->base(round - 1);
  Order tail(shared), head(take_);
  before.fill(size_ - shared, shared, tail.data());
  base.fill(0, take_, head.data());
  reorder(head.begin(), head.end(), std::move(tail));
  return head;
}

Draws::Order Draws::whole(std::uint64_t round) const {
  // The last round that begins with a draw depends on none before it.
  const std::uint64_t period = take_ / std::gcd(size_, take_);
  std::uint64_t at = round - round % period;
  Order order = next({}, at);
  while (at < round) order = next(order, ++at);
  return order;
}

Draws::Order Draws::next(const Order& before, std::uint64_t round) const {
  Order order(size_);
  base(round).fill(0, size_, order.data());
  const auto shared = static_cast<std::ptrdiff_t>(straddling(round));
  if (shared != 0) {
    reorder(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(take_),
            Order(before.end() - shared, before.end()));
  }
  return order;
}

}  // namespace covey
