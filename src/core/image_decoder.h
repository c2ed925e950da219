// Encoded images to arrays of one size: decoding, cropping and resizing in one pass.
#pragma once

#include <memory>
#include <vector>

#include "image.h"
#include "image_reader.h"
#include "resize.h"
#include "wire.h"

namespace covey {

// Belongs to one thread, which reuses its memory.
class ImageDecoder {
 public:
  ImageDecoder();

  // The decoder of this thread.
  static ImageDecoder& of_thread();

  // Decodes an image into `spec.views` arrays. Only the rows and columns that they show are
  // decoded, so that corrupt data outside of them is not detected.
  ImageFault decode(const ImageSpec& spec, Bytes data, const RowKey& key, std::uint8_t* const* out);

  // The same for pixels of another decoder, (height, width, channels) of the type of the result.
  ImageFault frame(const ImageSpec& spec, const std::uint8_t* pixels, ImageSize size,
                   const RowKey& key, std::uint8_t* const* out);

  // The memory that is kept for the next image.
  std::size_t kept_bytes() const noexcept;

 private:
  ImageReader* reader_of(Bytes data) const noexcept;
  ImageFault decode_with(ImageReader& reader, const ImageSpec& spec, Bytes data, const RowKey& key,
                         std::uint8_t* const* out);
  ImageFault frame_rows(const ImageSpec& spec, const std::uint8_t* pixels, ImageSize size,
                        const RowKey& key, std::uint8_t* const* out);
  void release() noexcept;
  ImageFault read_directly(const ImageSpec& spec, ImageReader& reader, const RowKey& key,
                           std::uint8_t* out);
  ImageFault read_oriented(const ImageSpec& spec, ImageReader& reader, int orientation,
                           const RowKey& key, std::uint8_t* const* out);
  std::uint32_t begin(const ImageSpec& spec, ImageSize size, const RowKey& key, bool can_reduce);
  void finish(std::uint8_t* const* out);

  std::unique_ptr<ImageReader> jpeg_;
  std::unique_ptr<ImageReader> png_;
  std::vector<Resizer> resizers_;     // by view
  std::vector<std::uint8_t> pixels_;  // of an image that is rotated
  std::vector<std::uint8_t> rotated_;
};

}  // namespace covey
