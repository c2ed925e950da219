// Random access to the rows of an array in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "prefetch.h"

namespace covey {

// Copies rows to `out`. All indexes must be in range.
inline void take_rows(const std::uint8_t* rows, std::size_t row_bytes, const std::int64_t* numbers,
                      std::size_t count, std::uint8_t* out) noexcept {
  constexpr std::size_t kAhead = 4;
  const auto row = [&](std::size_t i) {
    return rows + static_cast<std::size_t>(numbers[i]) * row_bytes;
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) prefetch(row(i + kAhead), row_bytes);
    std::memcpy(out + i * row_bytes, row(i), row_bytes);
  }
}

}  // namespace covey
