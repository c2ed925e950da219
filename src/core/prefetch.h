// Asking for memory before it is needed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace covey {

// Into the second cache: the first one has few requests under way at once, and whoever asks for
// more waits, instead of working meanwhile (measured: two thirds of the time).
inline void prefetch_line(const void* address) noexcept {
#if defined(__GNUC__) || defined(__clang__)
  __builtin_prefetch(address, 0, 2);
#else
  (void)address;
#endif
}

// The processor follows a long stretch by itself once it is in it; only the beginning is asked for.
inline void prefetch(const std::uint8_t* data, std::size_t size) noexcept {
  constexpr std::uintptr_t kLine = 64;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t end = begin + std::min<std::size_t>(size, 1024);
  for (std::uintptr_t line = begin & ~(kLine - 1); line < end; line += kLine) {
    prefetch_line(reinterpret_cast<const void*>(line));
  }
}

}  // namespace covey
