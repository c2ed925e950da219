// The header of an encoded image: format, size, channels and orientation, without decoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "wire.h"

namespace covey {

enum class ImageFormat : std::uint8_t { jpeg, png, gif, bmp, webp };
inline constexpr std::size_t kImageFormats = 5;

// The lower-case name of a format, as Python uses it.
const char* name_of(ImageFormat format) noexcept;

struct ImageHeader {
  ImageFormat format = ImageFormat::jpeg;
  std::uint32_t width = 0;   // at least 1
  std::uint32_t height = 0;  // at least 1
  // As stored: JPEG 1, 3 or 4; PNG 1 to 4. An image with a palette has 3.
  std::uint8_t channels = 0;
  // Bits of a channel, as stored; of a PNG with a palette, those of an index.
  std::uint8_t bits = 0;
  // 1 to 8 as in EXIF; 1 if the image has no valid orientation. It is not applied to the size.
  std::uint8_t orientation = 1;
};

// Reads the header of a JPEG, PNG, GIF, BMP or WebP image. Returns nothing if the bytes are not
// such an image, or end before its pixels begin. The bytes are not trusted; time is linear in their
// number.
std::optional<ImageHeader> read_image_header(Bytes data) noexcept;

// The number of scans of a JPEG. Decoding each takes as long as decoding all pixels of a baseline
// image, but a scan may have 8 bytes.
std::size_t count_jpeg_scans(Bytes data) noexcept;

// The most scans of an image that is decoded. The product of scans and pixels is bounded, so that
// the time is bounded by the time of 16 scans of the largest image.
std::size_t max_jpeg_scans(std::uint64_t pixels, std::uint64_t max_pixels) noexcept;

}  // namespace covey
