// Types shared by the decoders of images: sizes, boxes, faults, and how an image becomes pixels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace covey {

struct ImageSize {
  std::uint32_t height = 0;
  std::uint32_t width = 0;

  bool operator==(const ImageSize&) const = default;
  std::uint64_t pixels() const noexcept { return std::uint64_t{height} * width; }
};

// A part of an image, in pixels.
struct Box {
  std::uint32_t top = 0;
  std::uint32_t left = 0;
  std::uint32_t height = 0;
  std::uint32_t width = 0;

  bool operator==(const Box&) const = default;
  std::uint32_t bottom() const noexcept { return top + height; }
  std::uint32_t right() const noexcept { return left + width; }
};

enum class Crop : std::uint8_t {
  none,    // the image has the size of the result
  squash,  // the image is resized, and its aspect ratio changes
  center,  // the largest central box of the right aspect ratio is resized
  random,  // a box of random area, aspect ratio and position is resized
};

// How an encoded image becomes an array (height, width, channels).
struct ImageSpec {
  ImageSize size;            // of the result
  std::size_t channels = 3;  // of the result; 2 are not decoded, but resized
  bool is_deep = false;      // 16 bits per channel instead of 8
  bool as_stored = false;    // images with another number of channels are a fault
  Crop crop = Crop::none;
  std::array<double, 2> scale{0.08, 1.0};       // area of a random box
  std::array<double, 2> ratio{3. / 4, 4. / 3};  // width / height of a random box
  bool flip = false;                            // mirror every second result
  bool fast = false;                            // decode JPEGs at a reduced scale
  bool orient = false;                          // apply the EXIF orientation
  std::size_t views = 1;                        // number of results per image
  ImageSize required;                           // of the encoded image; 0 for any
  std::uint64_t max_pixels = 0;

  std::size_t bytes() const noexcept { return size.pixels() * channels * (is_deep ? 2 : 1); }
};

// The identity of a row of a batch, from which random boxes are derived.
struct RowKey {
  std::uint64_t seed = 0;
  std::uint64_t batch = 0;
  std::uint64_t row = 0;  // in the batch of all ranks
};

enum class ImageError : std::uint8_t {
  none,
  unsupported,  // another decoder may be able to decode it
  corrupt,
  too_large,  // more than max_pixels
  size,       // not the required size
  channels,   // not the required number of channels
  memory,
  scans,  // too many scans, see image_header.h
};

struct ImageFault {
  ImageError code = ImageError::none;
  ImageSize size;            // of the image, if it is known
  std::size_t channels = 0;  // of the image, if the code is `channels`
  std::string message;       // of the library

  explicit operator bool() const noexcept { return code != ImageError::none; }
};

struct Framing {
  Box box;
  bool is_flipped = false;
};

// Chooses the box of one view of an image, as a function of (seed, batch, row, view). The results
// must never change: published seeds depend on them.
//
// A random box is chosen as by torchvision's RandomResizedCrop: ten attempts at an area that is
// uniform in `scale` and an aspect ratio whose logarithm is uniform, then a central box.
Framing choose_framing(const ImageSpec& spec, ImageSize image, const RowKey& key,
                       std::size_t view) noexcept;

}  // namespace covey
