// JPEG, with libjpeg-turbo. Without it, see image_decoder.cpp.
#include "image_reader.h"

#if defined(COVEY_JPEG)

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <vector>

#include "image_header.h"

extern "C" {
#include <jerror.h>
#include <jpeglib.h>
}

#define COVEY_QUOTE_(token) #token
#define COVEY_QUOTE(token) COVEY_QUOTE_(token)

namespace covey {
namespace {

// The number of rows that libjpeg is asked for at a time.
constexpr std::uint32_t kStripRows = 16;
// Columns on each side of a box that are decoded as well: the outermost columns of a partial decode
// lack the neighbours from which chroma is interpolated.
constexpr std::uint32_t kMargin = 2;
constexpr std::size_t kPadding = 64;

struct ErrorManager {
  jpeg_error_mgr base;
  std::jmp_buf jump;
};

[[noreturn]] void exit_with_error(j_common_ptr common) {
  std::longjmp(reinterpret_cast<ErrorManager*>(common->err)->jump, 1);
}

// Warnings are counted only: like Pillow, corrupt data that can be decoded is decoded.
void ignore_message(j_common_ptr common, int level) {
  if (level < 0) ++common->err->num_warnings;
}

boolean fail_at_end(j_decompress_ptr info) {
  ERREXIT(info, JERR_INPUT_EOF);
  return FALSE;
}

void skip(j_decompress_ptr info, long count) {
  if (count <= 0) return;
  const auto wanted = static_cast<std::size_t>(count);
  const std::size_t skipped =
      wanted < info->src->bytes_in_buffer ? wanted : info->src->bytes_in_buffer;
  info->src->next_input_byte += skipped;
  info->src->bytes_in_buffer -= skipped;
}

void nothing(j_decompress_ptr) {}

// Features of JPEG that this version of the library lacks: 12 bits, lossless and arithmetic coding,
// and partial decoding of some of them.
bool is_unsupported(int code) noexcept {
#if JPEG_LIB_VERSION < 70
  if (code == JERR_ARITH_NOTIMPL) return true;
#endif
  return code == JERR_BAD_PRECISION || code == JERR_SOF_UNSUPPORTED || code == JERR_NOTIMPL ||
         code == JERR_NOT_COMPILED || code == JERR_CCIR601_NOTIMPL ||
         code == JERR_FRACT_SAMPLE_NOTIMPL || code == JERR_CONVERSION_NOTIMPL ||
         code == JERR_COMPONENT_COUNT;
}

// Pillow's conversion of inverted CMYK, which Adobe's programs write.
void cmyk_to_rgbx(std::uint8_t* pixels, std::size_t count) noexcept {
  const auto scaled = [](unsigned a, unsigned b) {
    const unsigned product = a * b + 128;
    return ((product >> 8) + product) >> 8;
  };
  for (std::size_t i = 0; i < count; ++i, pixels += 4) {
    const unsigned black = pixels[3];  // 255 - K
    for (std::size_t c = 0; c < 3; ++c) {
      pixels[c] = static_cast<std::uint8_t>(black - scaled(255u - pixels[c], black));
    }
    pixels[3] = 255;
  }
}

class JpegReader final : public ImageReader {
 public:
  JpegReader() {
    info_.err = jpeg_std_error(&error_.base);
    error_.base.error_exit = exit_with_error;
    error_.base.emit_message = ignore_message;
    source_.init_source = nothing;
    source_.fill_input_buffer = fail_at_end;
    source_.skip_input_data = skip;
    source_.resync_to_restart = jpeg_resync_to_restart;
    source_.term_source = nothing;
  }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;
  ~JpegReader() override { close(); }

  // A decompressor keeps the tables of an image for later ones without tables; hence each image has
  // its own.
  ImageFault open(Bytes data) override {
    close();
    size_ = {};
    error_.base.msg_code = 0;
    is_created_ = true;  // destroying it is defined after a failure too
    if (!guarded([this] { jpeg_create_decompress(&info_); })) return fault();
    source_.next_input_byte = data.begin;
    source_.bytes_in_buffer = data.size();
    info_.src = &source_;
    if (!guarded([this] { jpeg_read_header(&info_, TRUE); })) return fault();
    size_ = {info_.image_height, info_.image_width};
    is_cmyk_ = info_.num_components == 4;
    channels_ = info_.num_components == 1 ? 1 : 3;
    scans_ = jpeg_has_multiple_scans(&info_) ? count_jpeg_scans(data) : 1;
    if (info_.num_components == 2 || info_.num_components > 4) {
      return {ImageError::unsupported, size_, 0, {}};
    }
    return {};
  }

  void close() noexcept override {
    if (is_created_) jpeg_destroy_decompress(&info_);
    is_created_ = false;
    release_large(strip_);
  }

  bool can_read(PixelForm form) const noexcept override {
    if (form == PixelForm::gray) return channels_ == 1;
    return form == PixelForm::rgb || form == PixelForm::rgbx || form == PixelForm::rgba;
  }

  bool can_reduce() const noexcept override { return true; }

  ImageFault read_into(PixelForm form, std::uint8_t* out) override {
    const std::size_t pixel = pixel_bytes(form), row = size_.width * pixel;
    if (!start(form, 1)) return fault();
    bool done = true;
    if (is_cmyk_) {
      strip_.resize(size_.width * std::size_t{4});
      for (std::uint32_t y = 0; y < size_.height && done; ++y, out += row) {
        done = read_rows(strip_.data(), 0, 1);
        if (!done) break;
        cmyk_to_rgbx(strip_.data(), size_.width);
        for (std::size_t x = 0; x < size_.width; ++x) {
          for (std::size_t c = 0; c < pixel; ++c) out[pixel * x + c] = strip_[4 * x + c];
        }
      }
    } else {
      done = read_rows(out, row, size_.height);
    }
    // Pillow rejects corrupt data after the pixels, and tolerates missing data.
    done = done && (guarded([this] { jpeg_finish_decompress(&info_); }) ||
                    error_.base.msg_code == JERR_INPUT_EOF);
    return done ? ImageFault{} : fault();
  }

  ImageFault read(const Box& box, std::uint32_t reduction, PixelForm form, RowSink& sink) override {
    if (!start(form, reduction)) return fault();
    const JDIMENSION width = info_.output_width, height = info_.output_height;
    JDIMENSION left = box.left > kMargin ? box.left - kMargin : 0;
    JDIMENSION columns = std::min<JDIMENSION>(box.right() + kMargin, width) - left;
    const bool is_narrower = columns < width;
    const JDIMENSION top = box.top > kMargin ? box.top - kMargin : 0;
    const JDIMENSION bottom = std::min<JDIMENSION>(box.bottom(), height);
    const bool begun = guarded([&] {
      if (is_narrower) jpeg_crop_scanline(&info_, &left, &columns);
      if (top > 0) jpeg_skip_scanlines(&info_, top);
    });
    if (!begun) return fault();
    if (!is_narrower) left = 0;
    const std::size_t stride = info_.output_width * pixel_bytes(form) + kPadding;
    const JDIMENSION rows = strip_rows(stride);
    strip_.resize(rows * stride);
    for (JDIMENSION y = top; y < bottom;) {
      const JDIMENSION count = std::min(rows, bottom - y);
      if (!read_rows(strip_.data(), stride, count)) return fault();
      if (is_cmyk_) {
        for (JDIMENSION i = 0; i < count; ++i) {
          cmyk_to_rgbx(strip_.data() + i * stride, info_.output_width);
        }
      }
      sink.add(strip_.data(), {y, count, left, info_.output_width, stride});
      y += count;
    }
    return {};  // later data is not read: like Pillow, a missing end is tolerated
  }

 private:
  // Calls functions of libjpeg; returns false if one has failed. They return by longjmp, so that
  // `calls` must not have objects with destructors.
  template <class Calls>
  bool guarded(Calls calls) {
    if (setjmp(error_.jump) != 0) return false;
    calls();
    return true;
  }

  bool start(PixelForm form, std::uint32_t reduction) {
    if (is_cmyk_) {
      info_.out_color_space = JCS_CMYK;
    } else {
      info_.out_color_space = form == PixelForm::gray  ? JCS_GRAYSCALE
                              : form == PixelForm::rgb ? JCS_EXT_RGB
                                                       : JCS_EXT_RGBA;
    }
    info_.scale_num = 1;
    info_.scale_denom = reduction;
    return guarded([this] { jpeg_start_decompress(&info_); });
  }

  // Decodes the next `count` rows.
  bool read_rows(std::uint8_t* out, std::size_t stride, std::uint32_t count) {
    return guarded([&] {
      JSAMPROW rows[kStripRows];
      for (std::uint32_t done = 0; done < count;) {
        const std::uint32_t wanted = std::min(kStripRows, count - done);
        for (std::uint32_t i = 0; i < wanted; ++i) rows[i] = out + (done + i) * stride;
        const JDIMENSION read = jpeg_read_scanlines(&info_, rows, wanted);
        if (read == 0) ERREXIT(&info_, JERR_TOO_LITTLE_DATA);
        done += read;
      }
    });
  }

  ImageFault fault() {
    ImageFault fault{ImageError::corrupt, size_, 0, {}};
    const int code = error_.base.msg_code;
    if (code == JERR_OUT_OF_MEMORY) {
      fault.code = ImageError::memory;
    } else if (is_unsupported(code)) {
      fault.code = ImageError::unsupported;
    } else if (code == JERR_INPUT_EOF) {
      fault.message = "the data is truncated";
    } else {
      char text[JMSG_LENGTH_MAX];
      error_.base.format_message(reinterpret_cast<j_common_ptr>(&info_), text);
      fault.message = text;
    }
    return fault;
  }

  jpeg_decompress_struct info_{};
  ErrorManager error_{};
  jpeg_source_mgr source_{};
  bool is_created_ = false;
  bool is_cmyk_ = false;
  std::vector<std::uint8_t> strip_;
};

}  // namespace

std::unique_ptr<ImageReader> make_jpeg_reader() { return std::make_unique<JpegReader>(); }

const char* jpeg_library() noexcept { return "libjpeg-turbo " COVEY_QUOTE(LIBJPEG_TURBO_VERSION); }

}  // namespace covey

#endif
