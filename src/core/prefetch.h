// Asking for memory before it is needed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace covey {

// The processor follows a long stretch by itself once it is in it; only the beginning is asked for.
inline void prefetch(const std::uint8_t* data, std::size_t size) noexcept {
#if defined(__GNUC__) || defined(__clang__)
  constexpr std::uintptr_t kLine = 64;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t end = begin + std::min<std::size_t>(size, 1024);
  for (std::uintptr_t line = begin & ~(kLine - 1); line < end; line += kLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(line));
  }
#else
  (void)data, (void)size;
#endif
}

}  // namespace covey
