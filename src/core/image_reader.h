// Decoders of one image format each. An object belongs to one thread, which reuses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "image.h"
#include "resize.h"
#include "wire.h"

namespace covey {

// The form of decoded pixels.
enum class PixelForm : std::uint8_t {
  gray,       // 1 byte
  rgb,        // 3 bytes
  rgbx,       // 4 bytes, of which the last is undefined
  rgba,       // 4 bytes; an image without alpha is opaque
  deep_gray,  // 1 word of 16 bits
  deep_rgb,   // 3 words
  deep_rgba,  // 4 words
};

constexpr std::size_t pixel_bytes(PixelForm form) noexcept {
  constexpr std::size_t kBytes[] = {1, 3, 4, 4, 2, 6, 8};
  return kBytes[static_cast<std::size_t>(form)];
}

// Takes rows as they are decoded, and may overwrite them. Eight bytes after each row are readable.
class RowSink {
 public:
  virtual ~RowSink() = default;

  virtual void add(std::uint8_t* data, const RowRange& rows) = 0;
};

// The number of rows that are decoded at a time: few if they are long.
constexpr std::uint32_t strip_rows(std::size_t stride) noexcept {
  constexpr std::size_t kMaxRows = 16, kMaxBytes = 1 << 20;
  const std::size_t rows = kMaxBytes / stride;
  return static_cast<std::uint32_t>(rows < 1 ? 1 : rows > kMaxRows ? kMaxRows : rows);
}

// Memory that a thread keeps for its next images; an image that needs more frees it.
inline constexpr std::size_t kMaxKeptBytes = 64 << 20;

template <class T>
void release_large(std::vector<T>& memory) noexcept {
  if (memory.capacity() * sizeof(T) > kMaxKeptBytes) std::vector<T>().swap(memory);
}

class ImageReader {
 public:
  virtual ~ImageReader() = default;

  // Reads the header. The data must stay in memory until the image is closed.
  virtual ImageFault open(Bytes data) = 0;

  // Frees the state of the image, so that it has no effect on the next one.
  virtual void close() noexcept = 0;

  ImageSize size() const noexcept { return size_; }

  // The number of channels as stored: 1, 2, 3 or 4; a palette, CMYK and YCCK count as RGB.
  std::size_t channels() const noexcept { return channels_; }

  // The number of scans of a JPEG of several scans, else 1.
  std::size_t scans() const noexcept { return scans_; }

  // Whether samples have 16 bits.
  bool is_deep() const noexcept { return is_deep_; }

  // Whether pixels of this form can be decoded.
  virtual bool can_read(PixelForm form) const noexcept = 0;

  // Whether `read` can skip what is outside its box, and reduce the scale by 2, 4 or 8.
  virtual bool can_reduce() const noexcept { return false; }

  // Decodes the complete image into memory of the caller.
  virtual ImageFault read_into(PixelForm form, std::uint8_t* out) = 0;

  // Decodes rows that include `box`. The form is not `rgb`.
  virtual ImageFault read(const Box& box, std::uint32_t reduction, PixelForm form,
                          RowSink& sink) = 0;

 protected:
  ImageSize size_;
  std::size_t channels_ = 0;
  std::size_t scans_ = 1;
  bool is_deep_ = false;
};

// The decoders of this build, or null.
std::unique_ptr<ImageReader> make_jpeg_reader();
std::unique_ptr<ImageReader> make_png_reader();

// Their libraries with versions, or null.
const char* jpeg_library() noexcept;
const char* png_library() noexcept;

}  // namespace covey
