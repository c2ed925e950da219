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
// Round r is a permutation. A draw that straddles two rounds has `a` things of the tail of the
// first; of the second, only the first `take` are put into another order: those that are not in
// that tail come first, the others after, each group in its order. So the things of a draw differ,
// and each still comes once a round.
//
// If take > size, things must repeat: the stream is not reordered, and repeats are even.
class Draws {
 public:
  Draws(std::uint64_t key, std::uint64_t size, std::uint64_t take) noexcept
      : key_(key), size_(size), take_(take) {}

  // The things of a draw; and the round that each is of, if that is wanted.
  void draw(std::uint64_t number, std::uint64_t* things, std::uint64_t* rounds) const;

  // The first `count` things of a round, in the order in which they come.
  void begin(std::uint64_t round, std::uint64_t count, std::uint64_t* out) const;

 private:
  using Order = std::vector<std::uint64_t>;

  // How many things of a round are in the draw that its successor begins in.
  std::uint64_t straddling(std::uint64_t round) const noexcept { return round * size_ % take_; }
  // Whether reordering may reach the tail of a round, so that rounds depend on the one before.
  bool is_chained() const noexcept { return take_ <= size_ && size_ < 2 * take_ - 1; }

  Permutation base(std::uint64_t round) const noexcept {
    return Permutation(derive(key_, round), size_);
  }
  void draw_chained(std::uint64_t round, std::uint64_t place, std::uint64_t* things) const;
  void fill(std::uint64_t round, std::uint64_t place, std::uint64_t count,
            std::uint64_t* things) const;
  Order head(std::uint64_t round, const Permutation& base) const;
  Order whole(std::uint64_t round) const;
  Order next(const Order& before, std::uint64_t round) const;

  std::uint64_t key_;
  std::uint64_t size_;
  std::uint64_t take_;
};

}  // namespace covey
