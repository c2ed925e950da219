// Decoders of one format: partial decodes against full ones, for every kind of image.
#include "image_reader.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "encoded_images.h"
#include "wire_bytes.h"

namespace covey::testing {
namespace {

constexpr ImageSize kSize{45, 71};

// Copies the rows of a box, without the undefined bytes of pixels.
class BoxSink final : public RowSink {
 public:
  BoxSink(const Box& box, PixelForm form) : box_(box), pixel_(pixel_bytes(form)) {
    used_ = form == PixelForm::rgbx ? 3 : pixel_;
    pixels_.resize(std::size_t{box.height} * box.width * used_);
    seen_.resize(box.height);
  }

  void add(std::uint8_t* data, const RowRange& rows) override {
    covers_ &= rows.left <= box_.left && rows.left + rows.width >= box_.right();
    if (!covers_) return;
    for (std::uint32_t y = 0; y < rows.count; ++y) {
      std::uint8_t* const row = data + y * rows.stride;
      // Bytes after a row are readable: the address sanitizer detects those that are not.
      for (std::size_t i = 0; i < 8; ++i) ignored_ += row[rows.width * pixel_ + i];
      const std::uint32_t at = rows.first + y;
      if (at >= box_.top && at < box_.bottom()) {
        ++seen_[at - box_.top];
        for (std::uint32_t x = 0; x < box_.width; ++x) {
          std::copy_n(row + (box_.left - rows.left + x) * pixel_, used_,
                      pixels_.begin() + static_cast<std::ptrdiff_t>(
                                            (std::size_t{at - box_.top} * box_.width + x) * used_));
        }
      }
    }
  }

  // Whether every row was passed once.
  bool is_complete() const {
    return covers_ && std::all_of(seen_.begin(), seen_.end(), [](int n) { return n == 1; });
  }
  const std::vector<std::uint8_t>& pixels() const { return pixels_; }
  std::size_t used() const { return used_; }

 private:
  Box box_;
  std::size_t pixel_;
  std::size_t used_;
  std::vector<std::uint8_t> pixels_;
  std::vector<int> seen_;
  bool covers_ = true;
  unsigned ignored_ = 0;
};

std::vector<std::uint8_t> read_box(ImageReader& reader, Bytes data, const Box& box,
                                   std::uint32_t reduction, PixelForm form) {
  BoxSink sink(box, form);
  CHECK(!reader.open(data));
  CHECK(!reader.read(box, reduction, form, sink));
  CHECK(sink.is_complete());
  reader.close();
  return sink.pixels();
}

std::vector<std::uint8_t> cut(const std::vector<std::uint8_t>& pixels, ImageSize size,
                              const Box& box) {
  const std::size_t pixel = pixels.size() / size.pixels();
  std::vector<std::uint8_t> out;
  for (std::uint32_t y = box.top; y < box.bottom(); ++y) {
    const auto row = pixels.begin() +
                     static_cast<std::ptrdiff_t>((std::size_t{y} * size.width + box.left) * pixel);
    out.insert(out.end(), row, row + static_cast<std::ptrdiff_t>(box.width * pixel));
  }
  return out;
}

// Boxes with every first column and row, of short, medium and maximal width and height.
std::vector<Box> boxes_of(ImageSize size, std::mt19937& random) {
  const auto lengths = [](std::uint32_t most) {
    std::vector<std::uint32_t> all;
    for (const std::uint32_t length : {1U, 2U, 3U, 7U, 8U, 17U, most - 1, most}) {
      if (length >= 1 && length <= most) all.push_back(length);
    }
    return all;
  };
  std::vector<Box> boxes;
  for (std::uint32_t left = 0; left < size.width; ++left) {
    for (const std::uint32_t width : lengths(size.width - left)) {
      const auto height = static_cast<std::uint32_t>(1 + random() % size.height);
      const auto top = static_cast<std::uint32_t>(random() % (size.height - height + 1));
      boxes.push_back({top, left, height, width});
    }
  }
  for (std::uint32_t top = 0; top < size.height; ++top) {
    for (const std::uint32_t height : lengths(size.height - top)) {
      const auto width = static_cast<std::uint32_t>(1 + random() % size.width);
      const auto left = static_cast<std::uint32_t>(random() % (size.width - width + 1));
      boxes.push_back({top, left, height, width});
    }
  }
  return boxes;
}

TEST(jpeg_boxes_equal_those_of_a_full_decode) {
  const auto reader = make_jpeg_reader();
  if (reader == nullptr) return;
  std::mt19937 random(1);
  for (const JpegKind& kind : jpeg_kinds()) {
    const Exact data(encode_jpeg(kind, kSize));
    for (const std::uint32_t reduction : {1U, 2U, 4U, 8U}) {
      const ImageSize size{(kSize.height + reduction - 1) / reduction,
                           (kSize.width + reduction - 1) / reduction};
      const std::vector<std::uint8_t> full = read_box(
          *reader, data.bytes(), {0, 0, size.height, size.width}, reduction, PixelForm::rgbx);
      const std::vector<Box> boxes = boxes_of(size, random);
      // Restart markers change the decoder's state, not the arithmetic: some boxes suffice.
      for (std::size_t i = 0; i < boxes.size(); i += kind.restart == 0 ? 1 : 7) {
        CHECK(read_box(*reader, data.bytes(), boxes[i], reduction, PixelForm::rgbx) ==
              cut(full, size, boxes[i]));
      }
    }
  }
}

TEST(png_boxes_equal_those_of_a_full_decode) {
  const auto reader = make_png_reader();
  if (reader == nullptr) return;
  std::mt19937 random(2);
  for (const PngKind& kind : png_kinds()) {
    const Exact data(encode_png(kind, kSize));
    CHECK(!reader->open(data.bytes()));
    std::vector<PixelForm> forms;
    for (const PixelForm form : {PixelForm::gray, PixelForm::rgbx, PixelForm::rgba,
                                 PixelForm::deep_gray, PixelForm::deep_rgb, PixelForm::deep_rgba}) {
      if (reader->can_read(form)) forms.push_back(form);
    }
    for (const PixelForm form : forms) {
      const std::vector<std::uint8_t> full =
          read_box(*reader, data.bytes(), {0, 0, kSize.height, kSize.width}, 1, form);
      const std::vector<Box> boxes = boxes_of(kSize, random);
      for (std::size_t i = 0; i < boxes.size(); i += 20) {
        CHECK(read_box(*reader, data.bytes(), boxes[i], 1, form) == cut(full, kSize, boxes[i]));
      }
    }
  }
}

// Both ways to decode a complete image, and all forms of its pixels, agree.
void check_forms(ImageReader& reader, Bytes data) {
  const Box all{0, 0, kSize.height, kSize.width};
  const std::vector<std::uint8_t> rgb = read_box(reader, data, all, 1, PixelForm::rgbx);
  for (const PixelForm form : {PixelForm::gray, PixelForm::rgb, PixelForm::rgba,
                               PixelForm::deep_gray, PixelForm::deep_rgb, PixelForm::deep_rgba}) {
    CHECK(!reader.open(data));
    if (!reader.can_read(form)) continue;
    Exact out(std::string(kSize.pixels() * pixel_bytes(form), '\x5a'));
    CHECK(!reader.read_into(form, out.data()));
    const std::vector<std::uint8_t> pixels(out.data(), out.data() + out.size());
    if (form == PixelForm::rgb) {
      CHECK(pixels == rgb);
    } else {
      CHECK(pixels == read_box(reader, data, all, 1, form));
    }
    if (form == PixelForm::rgba || form == PixelForm::gray) {
      const std::size_t pixel = pixel_bytes(form);
      bool same = true;
      for (std::size_t i = 0; i < kSize.pixels(); ++i) {
        for (std::size_t c = 0; c < 3; ++c) {
          same &= pixels[i * pixel + (pixel == 1 ? 0 : c)] == rgb[3 * i + c];
        }
      }
      CHECK(same);
    }
    if (form >= PixelForm::deep_gray && pixel_bytes(form) >= 6) {
      bool same = true;  // 8 bits are the high ones of 16
      for (std::size_t i = 0; i < kSize.pixels(); ++i) {
        for (std::size_t c = 0; c < 3; ++c) {
          const auto word = load<std::uint16_t>(out.data() + i * pixel_bytes(form) + 2 * c);
          same &= word >> 8 == rgb[3 * i + c];
        }
      }
      CHECK(same);
    }
  }
  reader.close();
}

TEST(forms_of_pixels_agree) {
  if (const auto reader = make_jpeg_reader()) {
    for (const JpegKind& kind : jpeg_kinds()) {
      const Exact data(encode_jpeg(kind, kSize));
      check_forms(*reader, data.bytes());
    }
  }
  if (const auto reader = make_png_reader()) {
    for (const PngKind& kind : png_kinds()) {
      const Exact data(encode_png(kind, kSize));
      check_forms(*reader, data.bytes());
    }
  }
}

// PNG is lossless: decoded samples are those that were encoded.
TEST(png_samples) {
  const auto reader = make_png_reader();
  if (reader == nullptr) return;
  for (const bool is_interlaced : {false, true}) {
    for (const int color : {0, 2, 6}) {
      const PngKind kind{color, 8, is_interlaced, false, 0};
      const std::size_t channels = png_channels(kind);
      const Exact data(encode_png(kind, kSize));
      const std::vector<std::uint8_t> expected =
          picture({kSize.height, static_cast<std::uint32_t>(kSize.width * channels)}, 1);
      CHECK(!reader->open(data.bytes()));
      Exact out(std::string(expected.size(), '\0'));
      const PixelForm form = channels == 1   ? PixelForm::gray
                             : channels == 3 ? PixelForm::rgb
                                             : PixelForm::rgba;
      CHECK(!reader->read_into(form, out.data()));
      CHECK(std::equal(expected.begin(), expected.end(), out.data()));
      reader->close();
    }
  }
}

// A compressed picture is near the original.
TEST(jpeg_samples) {
  const auto reader = make_jpeg_reader();
  if (reader == nullptr) return;
  for (JpegKind kind : jpeg_kinds()) {
    if (kind.components == 4 || kind.h * kind.v > 1) continue;
    kind.quality = 100;
    const Exact data(encode_jpeg(kind, kSize));
    const std::vector<std::uint8_t> pixels =
        read_box(*reader, data.bytes(), {0, 0, kSize.height, kSize.width}, 1, PixelForm::rgbx);
    const auto channels = static_cast<std::size_t>(kind.components);
    const std::vector<std::uint8_t> expected = picture(kSize, channels);
    int worst = 0;
    for (std::size_t i = 0; i < kSize.pixels(); ++i) {
      for (std::size_t c = 0; c < 3; ++c) {
        const int found = pixels[3 * i + c];
        worst =
            std::max(worst, std::abs(found - expected[i * channels + std::min(c, channels - 1)]));
      }
    }
    CHECK(worst <= 4);
  }
}

TEST(headers_of_readers) {
  if (const auto reader = make_jpeg_reader()) {
    for (const JpegKind& kind : jpeg_kinds()) {
      const Exact data(encode_jpeg(kind, kSize));
      CHECK(!reader->open(data.bytes()));
      CHECK(reader->size() == kSize && !reader->is_deep());
      CHECK(reader->channels() == (kind.components == 1 ? 1 : 3));
    }
  }
  if (const auto reader = make_png_reader()) {
    for (const PngKind& kind : png_kinds()) {
      const Exact data(encode_png(kind, kSize));
      CHECK(!reader->open(data.bytes()));
      CHECK(reader->size() == kSize && reader->is_deep() == (kind.bits == 16));
      CHECK(reader->channels() == (kind.color == 3 ? 3 : png_channels(kind)));
    }
  }
}

}  // namespace
}  // namespace covey::testing
