#include "permutation.h"

#include <cmath>
#include <utility>

namespace covey {

Permutation::Permutation(std::uint64_t key, std::uint64_t size) noexcept : size_(size), keys_{} {
  if (size <= kShuffled) {
    shuffled_ = {};
    for (std::uint64_t i = 0; i < size; ++i) shuffled_[i] = static_cast<std::uint8_t>(i);
    // Fisher-Yates from the last element down; a random word is used for two swaps.
    std::uint64_t word = 0;
    for (std::uint64_t i = size; i > 1; --i) {
      word = (size - i) % 2 == 0 ? derive(key, i) : word << 32;
      std::swap(shuffled_[i - 1], shuffled_[scale(word, i)]);
    }
    return;
  }
  // The square root of a double may be off by one; corrected here.
  rows_ = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(size)));
  while (rows_ * rows_ < size) ++rows_;
  columns_ = (size + rows_ - 1) / rows_;
  for (int i = 0; i < kTurns; ++i) keys_[i] = derive(key, static_cast<std::uint64_t>(i));
}

void Permutation::fill(std::uint64_t first, std::uint64_t count,
                       std::uint64_t* out) const noexcept {
  constexpr int kLanes = 4;
  std::uint64_t i = 0;
  for (; size_ > kShuffled && i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) out[i + lane] = first + i + lane;
    walk<kLanes>(out + i);
    for (int lane = 0; lane < kLanes; ++lane) {
      if (out[i + lane] >= size_) out[i + lane] = (*this)(out[i + lane]);
    }
  }
  for (; i < count; ++i) out[i] = (*this)(first + i);
}

}  // namespace covey
