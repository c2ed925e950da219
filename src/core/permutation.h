// Orders that are shuffled by a key and never stored: any place of any order is computed by itself.
// What a key gives must never change: seeds that people have noted down depend on it.
#pragma once

#include <array>
#include <cstdint>

namespace covey {

// The finaliser of splitmix64: every bit of the result depends on every bit of the word.
constexpr std::uint64_t mix(std::uint64_t word) noexcept {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

// The key of one part of what `key` is the key of.
constexpr std::uint64_t derive(std::uint64_t key, std::uint64_t part) noexcept {
  return mix(key + (part + 1) * 0x9e3779b97f4a7c15);
}

// A permutation of the numbers below `size`, which is below 2^62.
//
// A few numbers are really shuffled, which makes every order of them equally likely. Many go
// through a Feistel network: a number is a row and a column of a grid that is about square; by
// turns, rows are moved round by an amount that hangs on the column, and columns by one that hangs
// on the row. Whoever lands in the grid but not below `size` walks on, and comes out in the end.
class Permutation {
 public:
  Permutation(std::uint64_t key, std::uint64_t size) noexcept;

  std::uint64_t operator()(std::uint64_t place) const noexcept {
    if (size_ <= kShuffled) return shuffled_[place];
    do walk<1>(&place);
    while (place >= size_);
    return place;
  }

  // What is at the places [first, first + count). A processor has several under way at once, if
  // they are asked for together.
  void fill(std::uint64_t first, std::uint64_t count, std::uint64_t* out) const noexcept;

 private:
  static constexpr std::uint64_t kShuffled = 32;
  static constexpr int kTurns = 10;

  // How far round in `size`, from a random word: its upper half tells.
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

  // One walk through the network, of so many places side by side.
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
