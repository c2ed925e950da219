#include "draws.h"

#include <algorithm>
#include <numeric>

namespace covey {
namespace {

// Moves the items that are not in `tail` to the front; sorts `tail`.
template <class Iterator>
void reorder(Iterator begin, Iterator end, std::vector<std::uint64_t> tail) {
  std::sort(tail.begin(), tail.end());
  std::stable_partition(begin, end, [&](std::uint64_t item) {
    return !std::binary_search(tail.begin(), tail.end(), item);
  });
}

}  // namespace

void Draws::draw(std::uint64_t number, std::uint64_t* items, std::uint64_t* rounds) const {
  const std::uint64_t slot = number * take_;
  const std::uint64_t round = slot / size_, position = slot % size_;
  for (std::uint64_t i = 0; rounds != nullptr && i < take_; ++i) {
    rounds[i] = round + (position + i) / size_;
  }
  if (take_ > size_) return draw_repeating(number, items);
  if (is_chained()) return draw_chained(round, position, items);
  const std::uint64_t count = std::min(take_, size_ - position);
  fill(round, position, count, items);
  if (count < take_) fill(round + 1, 0, take_ - count, items + count);
}

void Draws::draw_chained(std::uint64_t round, std::uint64_t position, std::uint64_t* items) const {
  const Order order = whole(round);
  const auto begin = order.begin() + static_cast<std::ptrdiff_t>(position);
  const std::uint64_t count = std::min(take_, size_ - position);
  std::copy_n(begin, count, items);
  if (count == take_) return;
  const Order following = next(Order(begin, order.end()), round + 1);
  std::copy_n(following.begin(), take_ - count, items + count);
}

void Draws::draw_repeating(std::uint64_t number, std::uint64_t* items) const {
  // Each draw depends on the tail of a round that the previous one left. The last draw that begins
  // with a round does not.
  const std::uint64_t period = size_ / std::gcd(size_, take_);
  Order order;
  for (std::uint64_t i = number - number % period; i <= number; ++i) {
    const std::uint64_t slot = i * take_, end = slot + take_;
    const std::uint64_t begun = slot % size_ == 0 ? 0 : size_ - slot % size_;
    const Order tail(order.end() - static_cast<std::ptrdiff_t>(begun), order.end());
    if (i == number) std::copy(tail.begin(), tail.end(), items);
    std::uint64_t at = begun;
    for (std::uint64_t round = (slot + begun) / size_; at < take_; ++round) {
      const bool is_last = (round + 1) * size_ >= end;
      if (!is_last && i < number) {  // its result is not used
        at += size_;
        continue;
      }
      order = next(is_last ? tail : Order(), round);
      const std::uint64_t count = std::min(size_, take_ - at);
      if (i == number) std::copy_n(order.begin(), count, items + at);
      at += count;
    }
  }
}

void Draws::begin(std::uint64_t round, std::uint64_t count, std::uint64_t* out) const {
  if (!is_chained()) return fill(round, 0, count, out);
  const Order order = whole(round);
  std::copy_n(order.begin(), count, out);
}

void Draws::fill(std::uint64_t round, std::uint64_t position, std::uint64_t count,
                 std::uint64_t* items) const {
  const Permutation order = base(round);
  std::uint64_t reordered = 0;
  if (position < take_ && straddling(round) != 0) {
    const Order first = head(round, order);
    reordered = std::min(count, take_ - position);
    std::copy_n(first.begin() + static_cast<std::ptrdiff_t>(position), reordered, items);
  }
  order.fill(position + reordered, count - reordered, items + reordered);
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
  // Back to a round whose straddling draw has no reordered item of the previous round.
  std::uint64_t at = round;
  while (straddling(at) > size_ - take_) --at;
  Order order(size_);
  const std::uint64_t shared = straddling(at);
  if (shared != 0) base(at - 1).fill(0, size_, order.data());
  for (;; ++at) {
    const auto tail = static_cast<std::ptrdiff_t>(straddling(at));
    order = next(Order(order.end() - tail, order.end()), at);
    if (at == round) return order;
  }
}

Draws::Order Draws::next(const Order& tail, std::uint64_t round) const {
  Order order(size_);
  base(round).fill(0, size_, order.data());
  if (!tail.empty()) {
    const auto count = static_cast<std::ptrdiff_t>(std::min(take_, size_));
    reorder(order.begin(), order.begin() + count, tail);
  }
  return order;
}

}  // namespace covey
