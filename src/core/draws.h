// Fair draws: an infinite stream of rounds, each a permutation of all items, split into draws of
// distinct items. Every draw is computed independently.
#pragma once

#include <cstdint>
#include <vector>

#include "permutation.h"

namespace covey {

// Draws of `take` items out of `size` (at least one). Draw i is the slots [i * take, (i + 1) *
// take) of the stream; slots are below 2^63.
//
// Round r is a permutation. A draw that straddles two rounds begins with the tail of the first. The
// first `take` items of the second round are reordered: the items that are not in that tail come
// first, then the others, each group in its order. Hence the items of a draw are distinct, and each
// item occurs once per round.
//
// If take > size, items must repeat; the same rule makes that even: every draw has each item
// take / size times, or once more.
class Draws {
 public:
  Draws(std::uint64_t key, std::uint64_t size, std::uint64_t take) noexcept
      : key_(key), size_(size), take_(take) {}

  // The items of a draw, and optionally the round of each.
  void draw(std::uint64_t number, std::uint64_t* items, std::uint64_t* rounds) const;

  // The first `count` items of a round, in their final order; take <= size.
  void begin(std::uint64_t round, std::uint64_t count, std::uint64_t* out) const;

 private:
  using Order = std::vector<std::uint64_t>;

  // The number of slots before a round in the draw that the round begins in.
  std::uint64_t straddling(std::uint64_t round) const noexcept { return round * size_ % take_; }
  // Whether reordering can reach the tail of a round, so that rounds depend on earlier rounds.
  bool is_chained() const noexcept { return size_ < 2 * take_ - 1; }

  Permutation base(std::uint64_t round) const noexcept {
    return Permutation(derive(key_, round), size_);
  }
  void draw_chained(std::uint64_t round, std::uint64_t position, std::uint64_t* items) const;
  void draw_repeating(std::uint64_t number, std::uint64_t* items) const;
  void fill(std::uint64_t round, std::uint64_t position, std::uint64_t count,
            std::uint64_t* items) const;
  Order head(std::uint64_t round, const Permutation& base) const;
  Order whole(std::uint64_t round) const;
  Order next(const Order& tail, std::uint64_t round) const;

  std::uint64_t key_;
  std::uint64_t size_;
  std::uint64_t take_;
};

}  // namespace covey
