// Fair draws: an endless stream of rounds, in each of which everything comes once, cut into draws
// of things that differ. Any draw is computed by itself.
#pragma once

#include <cstdint>
#include <vector>

#include "permutation.h"

namespace covey {

// Draws of `take` things out of `size` (at least one); draw i is the slots [i * take, (i + 1) *
// take) of the stream, and slots are below 2^63.
//
// Round r is a permutation. A draw that straddles rounds begins with the tail of one; of the round
// that it ends in, only the first `take` are put into another order: those that are not in that
// tail come first, the others after, each group in its order. So the things of a draw differ, and
// each still comes once a round.
//
// If take > size, things must repeat, and the same rule makes that even: every draw has each thing
// take / size times, or once more.
class Draws {
 public:
  Draws(std::uint64_t key, std::uint64_t size, std::uint64_t take) noexcept
      : key_(key), size_(size), take_(take) {}

  // The things of a draw; and the round that each is of, if that is wanted.
  void draw(std::uint64_t number, std::uint64_t* things, std::uint64_t* rounds) const;

  // The first `count` things of a round, in the order in which they come; take <= size.
  void begin(std::uint64_t round, std::uint64_t count, std::uint64_t* out) const;

 private:
  using Order = std::vector<std::uint64_t>;

  // How many slots of the draw that a round begins in are before it.
  std::uint64_t straddling(std::uint64_t round) const noexcept { return round * size_ % take_; }
  // Whether reordering may reach the tail of a round, so that rounds depend on those before.
  bool is_chained() const noexcept { return size_ < 2 * take_ - 1; }

  Permutation base(std::uint64_t round) const noexcept {
    return Permutation(derive(key_, round), size_);
  }
  void draw_chained(std::uint64_t round, std::uint64_t place, std::uint64_t* things) const;
  void draw_repeating(std::uint64_t number, std::uint64_t* things) const;
  void fill(std::uint64_t round, std::uint64_t place, std::uint64_t count,
            std::uint64_t* things) const;
  Order head(std::uint64_t round, const Permutation& base) const;
  Order whole(std::uint64_t round) const;
  Order next(const Order& tail, std::uint64_t round) const;

  std::uint64_t key_;
  std::uint64_t size_;
  std::uint64_t take_;
};

}  // namespace covey
