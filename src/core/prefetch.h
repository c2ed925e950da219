// Prefetching of memory into the cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace covey {

// Into the second-level cache: the first level has few outstanding requests, and further ones stall
// (measured: two thirds of the time).
inline void prefetch_line(const void* address) noexcept {
#if defined(__GNUC__) || defined(__clang__)
  __builtin_prefetch(address, 0, 2);
#else
  (void)address;
#endif
}

// Only the start of a long range: the hardware prefetcher follows.
inline void prefetch(const std::uint8_t* data, std::size_t size) noexcept {
  constexpr std::uintptr_t kLine = 64;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t end = begin + std::min<std::size_t>(size, 1024);
  for (std::uintptr_t line = begin & ~(kLine - 1); line < end; line += kLine) {
    prefetch_line(reinterpret_cast<const void*>(line));
  }
}

}  // namespace covey
