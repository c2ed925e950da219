#include "image_decoder.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "image_header.h"

namespace covey {
namespace {

constexpr std::size_t kPadding = 64;

PixelForm form_of(const ImageSpec& spec) noexcept {
  const std::size_t channels = spec.channels;
  if (spec.is_deep) {
    return channels == 1   ? PixelForm::deep_gray
           : channels == 3 ? PixelForm::deep_rgb
                           : PixelForm::deep_rgba;
  }
  return channels == 1 ? PixelForm::gray : channels == 3 ? PixelForm::rgb : PixelForm::rgba;
}

// Pillow's weights of the luma of ITU-R 601-2, in place.
void to_gray(std::uint8_t* pixels, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t* const p = pixels + 4 * i;
    pixels[i] =
        static_cast<std::uint8_t>((p[0] * 19595u + p[1] * 38470u + p[2] * 7471u + 0x8000u) >> 16);
  }
}

// Passes rows on to the resizers of all views.
class ViewSink final : public RowSink {
 public:
  // `converts` four-byte pixels to grayscale.
  ViewSink(std::vector<Resizer>& resizers, bool converts)
      : resizers_(resizers), converts_(converts) {}

  void add(std::uint8_t* data, const RowRange& rows) override {
    for (std::size_t y = 0; converts_ && y < rows.count; ++y) {
      to_gray(data + y * rows.stride, rows.width);
    }
    for (Resizer& resizer : resizers_) resizer.add(data, rows);
  }

 private:
  std::vector<Resizer>& resizers_;
  const bool converts_;
};

void mirror(std::uint8_t* pixels, ImageSize size, std::size_t pixel) noexcept {
  for (std::uint32_t y = 0; y < size.height; ++y, pixels += size.width * pixel) {
    std::uint8_t *a = pixels, *b = pixels + (size.width - 1) * pixel;
    for (; a < b; a += pixel, b -= pixel) std::swap_ranges(a, a + pixel, b);
  }
}

// Whether an EXIF orientation exchanges height and width.
bool is_transposed(int orientation) noexcept { return orientation >= 5; }

// Rotates and mirrors pixels as the EXIF orientation requires; `size` is that of the input.
void orient(const std::uint8_t* from, ImageSize size, std::size_t pixel, int orientation,
            std::uint8_t* to, std::size_t to_stride) noexcept {
  const bool flips_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool flips_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const ImageSize result = is_transposed(orientation) ? ImageSize{size.width, size.height} : size;
  for (std::uint32_t y = 0; y < result.height; ++y) {
    for (std::uint32_t x = 0; x < result.width; ++x) {
      std::uint32_t in_y = is_transposed(orientation) ? x : y;
      std::uint32_t in_x = is_transposed(orientation) ? y : x;
      if (flips_x) in_x = size.width - 1 - in_x;
      if (flips_y) in_y = size.height - 1 - in_y;
      std::memcpy(to + y * to_stride + x * pixel,
                  from + (std::size_t{in_y} * size.width + in_x) * pixel, pixel);
    }
  }
}

}  // namespace

#if !defined(COVEY_JPEG)
std::unique_ptr<ImageReader> make_jpeg_reader() { return nullptr; }
const char* jpeg_library() noexcept { return nullptr; }
#endif
#if !defined(COVEY_PNG)
std::unique_ptr<ImageReader> make_png_reader() { return nullptr; }
const char* png_library() noexcept { return nullptr; }
#endif

ImageDecoder::ImageDecoder() : jpeg_(make_jpeg_reader()), png_(make_png_reader()) {}

ImageDecoder& ImageDecoder::of_thread() {
  static thread_local ImageDecoder decoder;
  return decoder;
}

ImageReader* ImageDecoder::reader_of(Bytes data) const noexcept {
  if (as_string(data).starts_with("\xff\xd8\xff")) return jpeg_.get();
  return as_string(data).starts_with("\x89PNG\r\n\x1a\n") ? png_.get() : nullptr;
}

ImageFault ImageDecoder::decode(const ImageSpec& spec, Bytes data, const RowKey& key,
                                std::uint8_t* const* out) {
  ImageReader* const reader = reader_of(data);
  if (reader == nullptr) return {ImageError::unsupported, {}, 0, {}};
  ImageFault fault;
  try {
    fault = decode_with(*reader, spec, data, key, out);
  } catch (const std::bad_alloc&) {
    fault = {ImageError::memory, reader->size(), 0, {}};
  }
  reader->close();
  release();
  return fault;
}

ImageFault ImageDecoder::decode_with(ImageReader& reader, const ImageSpec& spec, Bytes data,
                                     const RowKey& key, std::uint8_t* const* out) {
  if (ImageFault fault = reader.open(data)) return fault;
  ImageSize size = reader.size();
  if (size.pixels() > spec.max_pixels) return {ImageError::too_large, size, 0, {}};
  if (reader.scans() > max_jpeg_scans(size.pixels(), spec.max_pixels)) {
    return {ImageError::scans, size, 0, {}};
  }
  int orientation = 1;
  if (spec.orient) {
    if (const auto header = read_image_header(data)) orientation = header->orientation;
    if (is_transposed(orientation)) std::swap(size.height, size.width);
  }
  const ImageSize required = spec.required;
  if ((required.height != 0 && required.height != size.height) ||
      (required.width != 0 && required.width != size.width) ||
      (spec.crop == Crop::none && size != spec.size)) {
    return {ImageError::size, size, reader.channels(), {}};
  }
  if (spec.as_stored && reader.channels() != spec.channels) {
    return {ImageError::channels, size, reader.channels(), {}};
  }
  if (spec.channels == 2) return {ImageError::unsupported, size, 0, {}};
  const PixelForm form = form_of(spec);
  if (orientation != 1) return read_oriented(spec, reader, orientation, key, out);
  if (spec.crop != Crop::center && spec.crop != Crop::random && size == spec.size &&
      spec.views == 1 && reader.can_read(form)) {
    return read_directly(spec, reader, key, out[0]);
  }
  const std::uint32_t reduction = begin(spec, size, key, reader.can_reduce());
  Box needed = resizers_[0].needed();
  for (const Resizer& resizer : resizers_) {
    const Box& other = resizer.needed();
    const std::uint32_t bottom = std::max(needed.bottom(), other.bottom());
    const std::uint32_t right = std::max(needed.right(), other.right());
    needed.top = std::min(needed.top, other.top);
    needed.left = std::min(needed.left, other.left);
    needed.height = bottom - needed.top;
    needed.width = right - needed.left;
  }
  const bool converts = form == PixelForm::gray && !reader.can_read(form);
  const PixelForm read_as = form == PixelForm::rgb || converts ? PixelForm::rgbx : form;
  if (!reader.can_read(read_as)) return {ImageError::unsupported, size, 0, {}};
  ViewSink sink(resizers_, converts);
  if (ImageFault fault = reader.read(needed, reduction, read_as, sink)) return fault;
  finish(out);
  return {};
}

ImageFault ImageDecoder::read_directly(const ImageSpec& spec, ImageReader& reader,
                                       const RowKey& key, std::uint8_t* out) {
  const PixelForm form = form_of(spec);
  if (ImageFault fault = reader.read_into(form, out)) return fault;
  if (choose_framing(spec, spec.size, key, 0).is_flipped) {
    mirror(out, spec.size, pixel_bytes(form));
  }
  return {};
}

// The complete image is decoded and rotated: EXIF orientations are rare.
ImageFault ImageDecoder::read_oriented(const ImageSpec& spec, ImageReader& reader, int orientation,
                                       const RowKey& key, std::uint8_t* const* out) {
  const PixelForm form = form_of(spec);
  const bool converts = form == PixelForm::gray && !reader.can_read(form);
  const PixelForm read_as = form == PixelForm::rgb || converts ? PixelForm::rgbx : form;
  const ImageSize stored = reader.size();
  ImageSize size = stored;
  if (is_transposed(orientation)) std::swap(size.height, size.width);
  if (!reader.can_read(read_as)) return {ImageError::unsupported, size, 0, {}};
  const std::size_t pixel = pixel_bytes(read_as);
  pixels_.resize(stored.pixels() * pixel);
  if (ImageFault fault = reader.read_into(read_as, pixels_.data())) return fault;
  const std::size_t stride = size.width * pixel;
  rotated_.resize(size.height * stride + kPadding);
  orient(pixels_.data(), stored, pixel, orientation, rotated_.data(), stride);
  begin(spec, size, key, false);
  ViewSink(resizers_, converts).add(rotated_.data(), {0, size.height, 0, size.width, stride});
  finish(out);
  return {};
}

ImageFault ImageDecoder::frame(const ImageSpec& spec, const std::uint8_t* pixels, ImageSize size,
                               const RowKey& key, std::uint8_t* const* out) {
  ImageFault fault;
  try {
    fault = frame_rows(spec, pixels, size, key, out);
  } catch (const std::bad_alloc&) {
    fault = {ImageError::memory, size, 0, {}};
  }
  release();
  return fault;
}

ImageFault ImageDecoder::frame_rows(const ImageSpec& spec, const std::uint8_t* pixels,
                                    ImageSize size, const RowKey& key, std::uint8_t* const* out) {
  if (spec.crop == Crop::none && size != spec.size) return {ImageError::size, size, 0, {}};
  begin(spec, size, key, false);
  const std::size_t pixel = spec.channels * (spec.is_deep ? 2 : 1), row = size.width * pixel;
  ViewSink sink(resizers_, false);
  if (spec.channels == 1 || spec.is_deep) {  // read without padding
    for (Resizer& resizer : resizers_) resizer.add(pixels, {0, size.height, 0, size.width, row});
  } else {
    const std::size_t stride = size.width * std::size_t{4} + kPadding;
    const std::uint32_t rows = strip_rows(stride);
    pixels_.resize(rows * stride);
    for (std::uint32_t y = 0; y < size.height; y += rows) {
      const std::uint32_t count = std::min(rows, size.height - y);
      for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint8_t* from = pixels + (y + i) * row;
        std::uint8_t* to = pixels_.data() + i * stride;
        for (std::uint32_t x = 0; x < size.width; ++x, from += pixel, to += 4) {
          std::memcpy(to, from, pixel);
        }
      }
      sink.add(pixels_.data(), {y, count, 0, size.width, stride});
    }
  }
  finish(out);
  return {};
}

// Chooses the boxes of all views, and returns the reduction of the decoded image.
std::uint32_t ImageDecoder::begin(const ImageSpec& spec, ImageSize size, const RowKey& key,
                                  bool can_reduce) {
  resizers_.resize(spec.views);
  std::vector<Framing> framings;
  std::uint32_t reduction = spec.fast && can_reduce ? 8 : 1;
  for (std::size_t view = 0; view < spec.views; ++view) {
    framings.push_back(choose_framing(spec, size, key, view));
    const Box& box = framings.back().box;
    while (reduction > 1 &&
           (box.width < reduction * spec.size.width || box.height < reduction * spec.size.height)) {
      reduction /= 2;
    }
  }
  for (std::size_t view = 0; view < spec.views; ++view) {
    resizers_[view].begin(framings[view].box, reduction, framings[view].is_flipped, spec);
  }
  return reduction;
}

std::size_t ImageDecoder::kept_bytes() const noexcept {
  std::size_t bytes = pixels_.capacity() + rotated_.capacity();
  for (const Resizer& resizer : resizers_) bytes += resizer.kept_bytes();
  return bytes;
}

void ImageDecoder::release() noexcept {
  if (kept_bytes() <= kMaxKeptBytes) return;
  std::vector<Resizer>().swap(resizers_);
  std::vector<std::uint8_t>().swap(pixels_);
  std::vector<std::uint8_t>().swap(rotated_);
}

void ImageDecoder::finish(std::uint8_t* const* out) {
  for (std::size_t view = 0; view < resizers_.size(); ++view) resizers_[view].finish(out[view]);
}

}  // namespace covey
