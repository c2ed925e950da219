// The inner loops of resizing. Every implementation gives the same results.
#pragma once

#include <cstddef>
#include <cstdint>

#include "resize.h"

namespace covey::internal {

// The fractional bits of a sample between the two passes. Rounding it to 8 bits, as Pillow does,
// would let results differ from Pillow's by more than one level.
inline constexpr int kFraction = 6;

// Rows in memory; the stride is in samples.
template <class Sample>
struct Rows {
  const Sample* data;
  std::size_t stride;
  std::size_t count;
};

struct ResizeKernels {
  // Resizes rows of four-byte pixels to `channels` samples, 3 or 4. Eight bytes after each input
  // row are read, and one sample after each output row is written.
  void (*horizontal)(const Rows<std::uint8_t>& in, const Weights& weights, std::size_t channels,
                     std::int16_t* out, std::size_t out_stride);
  // Resizes columns of `samples` samples.
  void (*vertical)(const Rows<std::int16_t>& in, const Weights& weights, std::size_t samples,
                   std::uint8_t* out);
};

inline std::int16_t to_sample(std::int32_t sum, int precision) noexcept {
  return static_cast<std::int16_t>(sum >> (precision - kFraction));
}

// Half a unit of the result, which rounds it.
inline std::int32_t sample_half(int precision) noexcept { return 1 << (precision - kFraction - 1); }
inline std::int32_t byte_half(int precision) noexcept { return 1 << (precision + kFraction - 1); }

// The samples [first, samples) of one output row, for which wider loads are too long.
inline void vertical_tail(const Rows<std::int16_t>& in, const Weights& weights, std::size_t y,
                          std::size_t first, std::size_t samples, std::uint8_t* out) noexcept {
  const auto [begin, count] = weights.ranges[y];
  const std::int16_t* const k = weights.fixed.data() + y * weights.stride;
  for (std::size_t x = first; x < samples; ++x) {
    std::int32_t sum = byte_half(weights.precision);
    const std::int16_t* at = in.data + begin * in.stride + x;
    for (std::size_t i = 0; i < count; ++i, at += in.stride) sum += *at * k[i];
    const std::int32_t value = sum >> (weights.precision + kFraction);
    out[x] = static_cast<std::uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
  }
}

extern const ResizeKernels kPortableKernels;

// Null if the processor does not support them.
const ResizeKernels* x86_kernels() noexcept;

}  // namespace covey::internal
