// Asking for memory before it is needed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace covey {

// The processor follows a long stretch by itself once it is in it; only the beginning is asked for.
inline void prefetch(const std::uint8_t* data, std::size_t size) noexcept {
#if defined(__GNUC__) || defined(__clang__)
  const std::size_t end = std::min<std::size_t>(size, 1024);
  for (std::size_t at = 0; at < end; at += 64) __builtin_prefetch(data + at);
#else
  (void)data, (void)size;
#endif
}

}  // namespace covey
