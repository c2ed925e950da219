// Antialiased bilinear resizing, of rows as they are decoded. Results equal those of Pillow's
// `Image.resize(size, BILINEAR)` within one level.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "image.h"

namespace covey {

// The weights of the input pixels of each output pixel, along one axis.
struct Weights {
  struct Range {
    std::uint32_t first;
    std::uint32_t count;
  };

  std::vector<Range> ranges;
  std::size_t stride = 0;           // even: weights are applied in pairs
  std::vector<std::int16_t> fixed;  // of 8-bit images, in units of 2^-precision
  std::vector<double> exact;        // of 16-bit images
  int precision = 0;

  // [begin, end) of an axis is resized to `size` pixels; pixels outside [low, high) are not used.
  struct Axis {
    double begin = 0, end = 0;
    std::uint32_t low = 0, high = 0, size = 0;
    bool is_reversed = false, is_deep = false;

    bool operator==(const Axis&) const = default;
  };

  // Computes the weights of an axis, unless it is the last one: images often have one size.
  // Positions are relative to `low`. The weights of a pixel sum to 2^precision.
  void compute(const Axis& axis);

 private:
  Axis last_;
};

// Decoded rows in memory: [first, first + count) of an image, from the column `left` on.
struct RowRange {
  std::uint32_t first;
  std::uint32_t count;
  std::uint32_t left;
  std::uint32_t width;
  std::size_t stride;  // in bytes
};

// Resizes one box of an image, whose rows are supplied from top to bottom.
//
// A pixel of 8-bit input takes one byte (grayscale) or four (RGB with an unused byte, RGBA); a
// pixel of 16-bit input takes as many words as it has channels.
class Resizer {
 public:
  // The box in the coordinates of the decoded image, whose pixels are 1 / `reduction` of those of
  // the box; 1 if it is decoded in full. Throws std::bad_alloc for images of extreme aspect ratio,
  // which need much more memory than their pixels.
  void begin(const Box& box, std::uint32_t reduction, bool is_flipped, const ImageSpec& spec);

  // The part of the decoded image that is needed.
  const Box& needed() const noexcept { return needed_; }

  // Takes rows of the decoded image. Eight bytes after each row of four-byte pixels must be
  // readable.
  void add(const std::uint8_t* data, const RowRange& rows);

  // Writes the result, after all rows.
  void finish(std::uint8_t* out);

  // The memory that is kept for the next image.
  std::size_t kept_bytes() const noexcept;

 private:
  void add_deep(const std::uint8_t* data, std::size_t stride, std::size_t row, std::size_t count);

  Box needed_;
  ImageSize size_;
  std::size_t channels_ = 0;
  bool is_deep_ = false;
  Weights horizontal_;
  Weights vertical_;
  std::size_t stride_ = 0;             // of `resized_`, in samples
  std::vector<std::int16_t> resized_;  // rows of the final width
  std::vector<float> deep_;            // the same, of 16-bit images
};

namespace internal {

// Rows in memory; the stride is in samples.
template <class Sample>
struct Rows {
  const Sample* data;
  std::size_t stride;
  std::size_t count;
};

// The inner loops. Every implementation gives the same results.
struct ResizeKernels {
  // Resizes rows of four-byte pixels to `channels` samples, 3 or 4. Eight bytes after each input
  // row are read, and one sample after each output row is written.
  void (*horizontal)(const Rows<std::uint8_t>& in, const Weights& weights, std::size_t channels,
                     std::int16_t* out, std::size_t out_stride);
  // Resizes columns of `samples` samples.
  void (*vertical)(const Rows<std::int16_t>& in, const Weights& weights, std::size_t samples,
                   std::uint8_t* out);
};

extern const ResizeKernels kPortableKernels;

// With AVX2; null if the processor does not support it.
const ResizeKernels* avx2_kernels() noexcept;

}  // namespace internal

}  // namespace covey
