// Permutations derived from a key, with random access and no storage. The results must never
// change: published seeds depend on them.
#pragma once

#include <array>
#include <cstdint>

namespace covey {

// The finaliser of splitmix64: every output bit depends on every input bit.
constexpr std::uint64_t mix(std::uint64_t word) noexcept {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

// The key of part `index` of the object with this key.
constexpr std::uint64_t derive(std::uint64_t key, std::uint64_t part) noexcept {
  return mix(key + (part + 1) * 0x9e3779b97f4a7c15);
}

// A permutation of the integers below `size`, which is below 2^62.
//
// Small permutations are shuffled (Fisher-Yates), so that every order is equally likely. Large ones
// use a Feistel network: a value is the row and column of a nearly square grid; in turn, rows are
// rotated by an amount that depends on the column, and columns by one that depends on the row.
// Cycle walking: the network is applied again until the value is below `size`.
class Permutation {
 public:
  Permutation(std::uint64_t key, std::uint64_t size) noexcept;

  std::uint64_t operator()(std::uint64_t place) const noexcept {
    if (size_ <= kShuffled) return shuffled_[place];
    do walk<1>(&place);
    while (place >= size_);
    return place;
  }

  // The values at the positions [first, first + count). Computed together, they overlap in the
  // processor's pipeline.
  void fill(std::uint64_t first, std::uint64_t count, std::uint64_t* out) const noexcept;

 private:
  static constexpr std::uint64_t kShuffled = 32;
  static constexpr int kTurns = 10;

  // Scales a random word to a rotation in [0, size), by its upper half.
  static std::uint64_t scale(std::uint64_t word, std::uint64_t size) noexcept {
    return ((word >> 32) * size) >> 32;
  }

  static std::uint64_t turn(std::uint64_t at, std::uint64_t by, std::uint64_t key,
                            std::uint64_t size) noexcept {
    std::uint64_t word = (by + key) * 0xbf58476d1ce4e5b9;
    word = (word ^ (word >> 32)) * 0x94d049bb133111eb;
    at += scale(word, size);
    return at < size ? at : at - size;
  }

  // Applies the network once to a group of values.
  template <int Lanes>
  void walk(std::uint64_t* places) const noexcept {
    std::uint64_t rows[Lanes], columns[Lanes];
    for (int lane = 0; lane < Lanes; ++lane) {
      rows[lane] = places[lane] / columns_;
      columns[lane] = places[lane] % columns_;
    }
    for (int i = 0; i < kTurns; i += 2) {
      for (int lane = 0; lane < Lanes; ++lane) {
        rows[lane] = turn(rows[lane], columns[lane], keys_[i], rows_);
      }
      for (int lane = 0; lane < Lanes; ++lane) {
        columns[lane] = turn(columns[lane], rows[lane], keys_[i + 1], columns_);
      }
    }
    for (int lane = 0; lane < Lanes; ++lane) places[lane] = rows[lane] * columns_ + columns[lane];
  }

  std::uint64_t size_;
  std::uint64_t rows_ = 0;
  std::uint64_t columns_ = 0;
  union {
    std::array<std::uint64_t, kTurns> keys_;
    std::array<std::uint8_t, kShuffled> shuffled_;
  };
};

}  // namespace covey
