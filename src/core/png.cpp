// PNG, with libpng. Without it, see image_decoder.cpp.
#include "image_reader.h"

#if defined(COVEY_PNG)

#include <png.h>

#include <algorithm>
#include <bit>
#include <csetjmp>
#include <cstring>
#include <string>
#include <vector>

namespace covey {
namespace {

constexpr std::size_t kPadding = 64;
// Chunks other than pixels: profiles and texts, which are not used.
constexpr png_alloc_size_t kMaxChunkBytes = 8 << 20;
constexpr png_uint_32 kMaxSide = 0x7fffffff;

class PngReader final : public ImageReader {
 public:
  PngReader() = default;
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
  ~PngReader() override { close(); }

  ImageFault open(Bytes data) override {
    close();
    size_ = {};
    data_ = data;
    message_[0] = '\0';
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, fail, ignore);
    info_ = png_ == nullptr ? nullptr : png_create_info_struct(png_);
    if (info_ == nullptr) return {ImageError::memory, {}, 0, {}};
    if (!guarded([this] { read_info(); })) return fault();
    size_ = {png_get_image_height(png_, info_), png_get_image_width(png_, info_)};
    color_ = png_get_color_type(png_, info_);
    bits_ = png_get_bit_depth(png_, info_);
    is_interlaced_ = png_get_interlace_type(png_, info_) != PNG_INTERLACE_NONE;
    is_deep_ = bits_ == 16;
    has_transparency_ = png_get_valid(png_, info_, PNG_INFO_tRNS) != 0;
    const bool has_alpha = (color_ & PNG_COLOR_MASK_ALPHA) != 0;
    channels_ = (color_ & PNG_COLOR_MASK_COLOR) != 0 ? 3 : 1;
    if (has_alpha) ++channels_;
    return {};
  }

  void close() noexcept override {
    if (png_ != nullptr) png_destroy_read_struct(&png_, &info_, nullptr);
    png_ = nullptr;
    info_ = nullptr;
    release_large(strip_);
  }

  bool can_read(PixelForm form) const noexcept override {
    const bool wants_deep = form >= PixelForm::deep_gray;
    const bool wants_gray = form == PixelForm::gray || form == PixelForm::deep_gray;
    const bool wants_alpha = form == PixelForm::rgba || form == PixelForm::deep_rgba;
    if (wants_deep && !is_deep_) return false;
    if (wants_gray && channels_ > 2) return false;
    // Of tRNS, only the alpha values of a palette are applied; a transparent colour is not.
    return !(wants_alpha && has_transparency_ && color_ != PNG_COLOR_TYPE_PALETTE);
  }

  ImageFault read_into(PixelForm form, std::uint8_t* out) override {
    if (!start(form, size_.width * pixel_bytes(form))) return fault();
    if (!read_rows(out, size_.width * pixel_bytes(form), size_.height)) return fault();
    return {};
  }

  ImageFault read(const Box& box, std::uint32_t, PixelForm form, RowSink& sink) override {
    const std::size_t row = size_.width * pixel_bytes(form), stride = row + kPadding;
    if (!start(form, row)) return fault();
    if (is_interlaced_) {
      strip_.resize(size_.height * row + kPadding);
      if (!read_rows(strip_.data(), row, size_.height)) return fault();
      sink.add(strip_.data(), {0, size_.height, 0, size_.width, row});
      return {};
    }
    const std::uint32_t rows = strip_rows(stride);
    strip_.resize(rows * stride);
    for (std::uint32_t y = 0; y < box.bottom();) {
      const std::uint32_t count = std::min(rows, box.bottom() - y);
      if (!read_rows(strip_.data(), stride, count)) return fault();
      sink.add(strip_.data(), {y, count, 0, size_.width, stride});
      y += count;
    }
    return {};
  }

 private:
  // As in jpeg.cpp: `calls` must not have objects with destructors.
  template <class Calls>
  bool guarded(Calls calls) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    calls();
    return true;
  }

  static void fail(png_structp png, png_const_charp message) {
    auto* const self = static_cast<PngReader*>(png_get_error_ptr(png));
    std::strncpy(self->message_, message, sizeof self->message_ - 1);
    png_longjmp(png, 1);
  }
  static void ignore(png_structp, png_const_charp) {}

  static void take(png_structp png, png_bytep out, std::size_t count) {
    auto* const self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > self->data_.size()) png_error(png, "the data is truncated");
    std::memcpy(out, self->data_.begin, count);
    self->data_.begin += count;
  }

  void read_info() {
    png_set_read_fn(png_, this, take);
    png_set_crc_action(png_, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_set_user_limits(png_, kMaxSide, kMaxSide);  // max_pixels is checked by the caller
    png_set_chunk_malloc_max(png_, kMaxChunkBytes);
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_read_info(png_, info_);
  }

  // Sets the conversions; `row` is the expected size of a row.
  bool start(PixelForm form, std::size_t row) {
    const bool wants_deep = form >= PixelForm::deep_gray;
    const bool wants_gray = form == PixelForm::gray || form == PixelForm::deep_gray;
    const bool wants_alpha = form == PixelForm::rgba || form == PixelForm::deep_rgba;
    std::size_t found = 0;
    const bool done = guarded([&] {
      if (color_ == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
      if (color_ == PNG_COLOR_TYPE_GRAY && bits_ < 8) png_set_expand_gray_1_2_4_to_8(png_);
      if (is_deep_ && !wants_deep) png_set_strip_16(png_);
      if (is_deep_ && wants_deep && std::endian::native == std::endian::little) png_set_swap(png_);
      if (!wants_gray && (color_ & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(png_);
      // libpng converts a palette with tRNS to RGBA.
      const bool has_alpha = (color_ & PNG_COLOR_MASK_ALPHA) != 0 ||
                             (color_ == PNG_COLOR_TYPE_PALETTE && has_transparency_);
      const bool wants_fourth = wants_alpha || form == PixelForm::rgbx;
      if (has_alpha && !wants_fourth) png_set_strip_alpha(png_);
      if (!has_alpha && wants_fourth) png_set_add_alpha(png_, 0xffff, PNG_FILLER_AFTER);
      if (is_interlaced_) png_set_interlace_handling(png_);
      png_read_update_info(png_, info_);
      found = png_get_rowbytes(png_, info_);
    });
    if (done && found != row) std::strcpy(message_, "the size of a row is inconsistent");
    return done && found == row;
  }

  bool read_rows(std::uint8_t* out, std::size_t stride, std::uint32_t count) {
    const int passes = is_interlaced_ ? PNG_INTERLACE_ADAM7_PASSES : 1;
    return guarded([&] {
      for (int pass = 0; pass < passes; ++pass) {
        for (std::uint32_t y = 0; y < count; ++y) png_read_row(png_, out + y * stride, nullptr);
      }
    });
  }

  ImageFault fault() {
    ImageFault fault{ImageError::corrupt, size_, 0, message_};
    if (fault.message == "Out of memory") fault.code = ImageError::memory;
    return fault;
  }

  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  Bytes data_;
  int color_ = 0;
  int bits_ = 0;
  bool is_interlaced_ = false;
  bool has_transparency_ = false;
  char message_[128] = {};
  std::vector<std::uint8_t> strip_;
};

}  // namespace

std::unique_ptr<ImageReader> make_png_reader() { return std::make_unique<PngReader>(); }

const char* png_library() noexcept {
  static const std::string name = std::string("libpng ") + png_get_libpng_ver(nullptr);
  return name.c_str();
}

}  // namespace covey

#endif
