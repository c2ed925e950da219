// The inner loops of resizing. Every implementation gives the same results.
#pragma once

#include <cstddef>
#include <cstdint>

#include "resize.h"

namespace covey::internal {

// Rows of pixels in memory.
struct Rows {
  const std::uint8_t* data;
  std::size_t stride;
  std::size_t count;
};

struct ResizeKernels {
  // Resizes rows of four-byte pixels to pixels of `channels` bytes, 3 or 4. Eight bytes after each
  // input row are read, and one byte after each output row is written.
  void (*horizontal)(const Rows& in, const Weights& weights, std::size_t channels,
                     std::uint8_t* out, std::size_t out_stride);
  // Resizes columns of bytes.
  void (*vertical)(const Rows& in, const Weights& weights, std::size_t row_bytes,
                   std::uint8_t* out);
};

inline std::uint8_t to_byte(std::int32_t sum, int precision) noexcept {
  const std::int32_t value = sum >> precision;
  return static_cast<std::uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
}

// One output row of the columns [first, row_bytes), for which wider loads are too long.
inline void vertical_tail(const Rows& in, const Weights& weights, std::size_t y, std::size_t first,
                          std::size_t row_bytes, std::uint8_t* out) noexcept {
  const auto [begin, count] = weights.ranges[y];
  const std::int16_t* const k = weights.fixed.data() + y * weights.stride;
  for (std::size_t x = first; x < row_bytes; ++x) {
    std::int32_t sum = 1 << (weights.precision - 1);
    const std::uint8_t* at = in.data + begin * in.stride + x;
    for (std::size_t i = 0; i < count; ++i, at += in.stride) sum += *at * k[i];
    out[x] = to_byte(sum, weights.precision);
  }
}

extern const ResizeKernels kPortableKernels;

// Null if the processor does not support them.
const ResizeKernels* x86_kernels() noexcept;

}  // namespace covey::internal
