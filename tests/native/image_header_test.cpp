#include "image_header.h"

#include <string>
#include <vector>

#include "check.h"
#include "wire_bytes.h"

namespace covey::testing {
namespace {

using namespace std::string_literals;

std::optional<ImageHeader> read(const std::string& data) {
  const Exact copy(data);
  return read_image_header(copy.bytes());
}

bool is(const std::optional<ImageHeader>& header, ImageFormat format, std::uint32_t height,
        std::uint32_t width, int channels, int bits, int orientation = 1) {
  return header && header->format == format && header->height == height && header->width == width &&
         header->channels == channels && header->bits == bits && header->orientation == orientation;
}

// An integer of `size` bytes.
std::string number(std::uint64_t value, int size, bool big) {
  std::string bytes;
  for (int i = 0; i < size; ++i) {
    bytes += static_cast<char>(value >> 8 * (big ? size - 1 - i : i));
  }
  return bytes;
}
std::string big(std::uint64_t value, int size) { return number(value, size, true); }
std::string little(std::uint64_t value, int size) { return number(value, size, false); }

// EXIF with another tag before the orientation.
std::string tiff(bool big_endian, std::uint32_t orientation, int type = 3, int count = 1,
                 int directory = 8) {
  const auto n = [big_endian](std::uint64_t v, int size) { return number(v, size, big_endian); };
  const std::string value = type == 3 ? n(orientation, 2) + "\0\0"s : n(orientation, 4);
  return (big_endian ? "MM\0*"s : "II*\0"s) + n(directory, 4) + n(2, 2) + n(0x010f, 2) + n(2, 2) +
         n(4, 4) + "abc\0"s + n(0x0112, 2) + n(type, 2) + n(count, 4) + value + n(0, 4);
}

std::string segment(int marker, const std::string& content) {
  return "\xff"s + static_cast<char>(marker) + big(content.size() + 2, 2) + content;
}

std::string frame(int height, int width, int channels, int bits = 8) {
  std::string components;
  for (int i = 1; i <= channels; ++i) components += static_cast<char>(i) + "\x11\0"s;
  return big(bits, 1) + big(height, 2) + big(width, 2) + big(channels, 1) + components;
}

const std::string kSoi = "\xff\xd8", kSos = "\xff\xda";

std::string jpeg(const std::string& before, int channels = 3) {
  return kSoi + before + segment(0xc0, frame(20, 30, channels)) + kSos;
}

std::uint32_t crc32(const std::string& bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc ^= static_cast<std::uint8_t>(byte);
    for (int i = 0; i < 8; ++i) crc = (crc & 1) != 0 ? crc >> 1 ^ 0xedb88320 : crc >> 1;
  }
  return ~crc;
}

std::string chunk(const std::string& type, const std::string& content) {
  return big(content.size(), 4) + type + content + big(crc32(type + content), 4);
}

std::string png(int bits, int color, std::uint32_t height = 20, std::uint32_t width = 30) {
  return "\x89PNG\r\n\x1a\n" +
         chunk("IHDR", big(width, 4) + big(height, 4) + big(bits, 1) + big(color, 1) + "\0\0\0"s);
}

std::string bmp(std::int32_t height, int pixel_bits, std::uint32_t compression = 0,
                std::uint32_t alpha = 0) {
  return "BM"s + std::string(12, '\0') + little(56, 4) + little(30, 4) +
         little(static_cast<std::uint32_t>(height), 4) + little(1, 2) + little(pixel_bits, 2) +
         little(compression, 4) + std::string(32, '\0') + little(alpha, 4);
}

std::string riff(const std::string& type, const std::string& content) {
  return type + little(content.size(), 4) + content + (content.size() % 2 == 1 ? "\0"s : ""s);
}

std::string webp(const std::string& chunks) { return riff("RIFF", "WEBP" + chunks); }

std::string extended(int flags) {
  return riff("VP8X", big(flags, 1) + "\0\0\0"s + little(29, 3) + little(19, 3));
}

TEST(image_header_jpeg) {
  for (const int channels : {1, 3, 4}) {
    CHECK(is(read(jpeg("", channels)), ImageFormat::jpeg, 20, 30, channels, 8));
  }
  CHECK(is(read(kSoi + segment(0xc2, frame(65535, 1, 3, 12)) + kSos), ImageFormat::jpeg, 65535, 1,
           3, 12));
  for (const int channels : {0, 2, 5}) CHECK(!read(jpeg("", channels)));
  CHECK(!read(kSoi + segment(0xc0, frame(0, 30, 3)) + kSos));
  CHECK(!read(kSoi + segment(0xc0, frame(20, 0, 3)) + kSos));
  CHECK(!read(kSoi + segment(0xc0, frame(20, 30, 3) + "x") + kSos));
}

TEST(image_header_jpeg_bytes_between_segments) {
  const std::string table = segment(0xdb, std::string(65, '\1'));
  for (const std::string& before :
       {table, segment(0xfe, "\xff\xc0\xff\xda"), "\xff\xff\xff"s + table, table + "garbage",
        "\xff\0"s + table, table + "\xff\xd0", "\xff\x01" + table, "\xff\xe0\0\0"s + table,
        segment(0xe0, "")}) {
    CHECK(is(read(jpeg(before)), ImageFormat::jpeg, 20, 30, 3, 8));
  }
  // Two frames, no frame, another image, and markers that do not exist.
  for (const std::string& before : {segment(0xc0, frame(20, 30, 3)), kSos, kSoi, "\xff\xd9"s,
                                    segment(0xc8, "x"), segment(0xf7, "x"), segment(0x02, "x")}) {
    CHECK(!read(jpeg(before)));
  }
}

TEST(image_header_exif_orientation) {
  for (const bool order : {false, true}) {
    for (int orientation = 1; orientation <= 8; ++orientation) {
      const std::string exif = tiff(order, static_cast<std::uint32_t>(orientation));
      CHECK(is(read(jpeg(segment(0xe1, "Exif\0\0"s + exif))), ImageFormat::jpeg, 20, 30, 3, 8,
               orientation));
      for (const std::string& prefix : {""s, "Exif\0\0"s}) {
        CHECK(is(read(png(8, 2) + chunk("IDAT", "x") + chunk("eXIf", prefix + exif)),
                 ImageFormat::png, 20, 30, 3, 8, orientation));
        CHECK(is(read(webp(extended(0x18) + riff("ALPH", "x") + riff("EXIF", prefix + exif))),
                 ImageFormat::webp, 20, 30, 4, 8, orientation));
      }
    }
    CHECK(read(jpeg(segment(0xe1, "Exif\0\0"s + tiff(order, 6, 4))))->orientation == 6);
    for (const std::string& invalid :
         {tiff(order, 0), tiff(order, 9), tiff(order, 0x10006, 4), tiff(order, 6, 2),
          tiff(order, 6, 3, 2), tiff(order, 6, 3, 1, 7), tiff(order, 6, 3, 1, -1),
          tiff(order, 6, 3, 1, 1000), "x"s + tiff(order, 6)}) {
      CHECK(is(read(jpeg(segment(0xe1, "Exif\0\0"s + invalid))), ImageFormat::jpeg, 20, 30, 3, 8));
    }
    // The first EXIF segment counts; other uses of APP1 are skipped.
    const std::string first = segment(0xe1, "http://ns.adobe.com/xap/1.0/\0"s) +
                              segment(0xe1, "Exif\0\0"s + tiff(order, 3));
    CHECK(read(jpeg(first + segment(0xe1, "Exif\0\0"s + tiff(order, 6))))->orientation == 3);
  }
}

TEST(image_header_exif_cut) {
  for (const bool order : {false, true}) {
    const std::string exif = tiff(order, 6);
    for (std::size_t size = 0; size <= exif.size(); ++size) {
      // The value is the last but four bytes of the offset of the next directory.
      const int expected = size >= exif.size() - 4 ? 6 : 1;
      const std::string cut = "Exif\0\0"s + exif.substr(0, size);
      CHECK(read(jpeg(segment(0xe1, cut)))->orientation == expected);
    }
  }
}

TEST(image_header_png) {
  const std::vector<std::vector<int>> depths = {{1, 2, 4, 8, 16}, {}, {8, 16}, {1, 2, 4, 8},
                                                {8, 16},          {}, {8, 16}, {}};
  const int channels[] = {1, 0, 3, 3, 2, 0, 4, 0};
  for (int color = 0; color < 8; ++color) {
    for (int bits = 0; bits < 256; ++bits) {
      bool valid = false;
      for (const int each : depths[static_cast<std::size_t>(color)]) valid = valid || each == bits;
      CHECK(valid ? is(read(png(bits, color)), ImageFormat::png, 20, 30, channels[color], bits)
                  : !read(png(bits, color)));
    }
  }
  CHECK(is(read(png(8, 2, 0x7fffffff, 1)), ImageFormat::png, 0x7fffffff, 1, 3, 8));
  for (const std::uint32_t side : {0U, 0x80000000U, 0xffffffffU}) {
    CHECK(!read(png(8, 2, side, 30)));
    CHECK(!read(png(8, 2, 20, side)));
  }
  // Every byte of IHDR is covered by its checksum.
  for (std::size_t i = 8; i < 33; ++i) {
    std::string changed = png(8, 2);
    changed[i] ^= 1;
    CHECK(!read(changed));
  }
}

TEST(image_header_gif) {
  const std::string rest = little(30, 2) + little(20, 2) + "\0\0\0"s;
  CHECK(is(read("GIF87a"s + rest), ImageFormat::gif, 20, 30, 3, 8));
  CHECK(is(read("GIF89a"s + rest), ImageFormat::gif, 20, 30, 3, 8));
  CHECK(!read("GIF88a"s + rest));
  CHECK(!read("GIF89a"s + std::string(7, '\0')));
}

TEST(image_header_bmp) {
  for (const int bits : {1, 4, 8, 16, 24, 32}) {
    CHECK(is(read(bmp(20, bits)), ImageFormat::bmp, 20, 30, 3, 8));
    CHECK(is(read(bmp(-20, bits)), ImageFormat::bmp, 20, 30, 3, 8));
  }
  CHECK(is(read(bmp(20, 32, 3, 0xff000000)), ImageFormat::bmp, 20, 30, 4, 8));
  CHECK(!read(bmp(0, 24)));
  CHECK(!read(bmp(-0x7fffffff - 1, 24)));
  CHECK(!read(bmp(20, 3)));
  CHECK(!read(bmp(20, 24, 4)));
  const std::string old = "BM"s + std::string(12, '\0') + little(12, 4) + little(30, 2) +
                          little(20, 2) + little(1, 2) + little(24, 2);
  CHECK(is(read(old), ImageFormat::bmp, 20, 30, 3, 8));
}

TEST(image_header_webp) {
  const std::string lossy = "\0\0\0\x9d\x01\x2a"s + little(30 | 0x4000, 2) + little(20, 2);
  CHECK(is(read(webp(riff("VP8 ", lossy))), ImageFormat::webp, 20, 30, 3, 8));
  CHECK(!read(webp(riff("VP8 ", "\1"s + lossy.substr(1)))));
  const auto lossless = [](std::uint32_t flags) {
    return webp(riff("VP8L", "\x2f"s + little(29 | 19 << 14 | flags << 28, 4)));
  };
  CHECK(is(read(lossless(0)), ImageFormat::webp, 20, 30, 3, 8));
  CHECK(is(read(lossless(1)), ImageFormat::webp, 20, 30, 4, 8));
  CHECK(!read(lossless(2)));
  CHECK(is(read(webp(extended(0))), ImageFormat::webp, 20, 30, 3, 8));
  CHECK(is(read(webp(extended(0x10))), ImageFormat::webp, 20, 30, 4, 8));
  CHECK(!read(webp(riff("ICCP", std::string(30, 'x')))));
}

TEST(scans_of_a_jpeg) {
  const auto count = [](const std::string& data) {
    const Exact copy(data);
    return count_jpeg_scans(copy.bytes());
  };
  const std::string scan = segment(0xda, "xxxxxx") + "\1\xff\0\2\xff\xd3\3"s;
  const std::string start = "\xff\xd8"s + segment(0xe1, "\xff\xda\0\2"s);
  CHECK(count("") == 0);
  CHECK(count(start) == 0);
  CHECK(count(start + scan) == 1);
  const std::string three = start + scan + segment(0xc4, "\xff\xda"s) + scan + "\xff" + scan;
  CHECK(count(three) == 3);
  CHECK(count(three + "\xff\xd9"s + scan) == 3);
  CHECK(count(three + "\xff\xda\xff"s) == 4);
  CHECK(max_jpeg_scans(1, 1) == 500);
  CHECK(max_jpeg_scans(64'000'000, 1) == 16);
  CHECK(max_jpeg_scans(64'000'000, 128'000'000) == 32);
  CHECK(max_jpeg_scans(64'000'000, ~std::uint64_t{0}) == 500);
  CHECK(max_jpeg_scans(0, 0) == 500);
}

// Cut images and images with one wrong byte: the address sanitizer detects reads past the end.
TEST(image_header_hostile) {
  const std::string exif = tiff(false, 6);
  const std::string lossy = "\0\0\0\x9d\x01\x2a"s + little(30, 2) + little(20, 2);
  for (const std::string& valid :
       {jpeg(segment(0xe1, "Exif\0\0"s + exif)), png(8, 2) + chunk("eXIf", exif),
        "GIF89a"s + little(30, 2) + little(20, 2) + "\0\0\0"s, bmp(20, 32, 3, 1),
        webp(riff("VP8 ", lossy)), webp(riff("VP8L", "\x2f"s + little(29, 4))),
        webp(extended(8) + riff("EXIF", exif))}) {
    CHECK(read(valid));
    for (std::size_t size = 0; size < valid.size(); ++size) read(valid.substr(0, size));
    for (std::size_t i = 0; i < valid.size(); ++i) {
      for (int byte = 0; byte < 256; ++byte) {
        std::string changed = valid;
        changed[i] = static_cast<char>(byte);
        const auto header = read(changed);
        CHECK(!header || (header->width >= 1 && header->height >= 1 && header->orientation >= 1 &&
                          header->orientation <= 8));
      }
    }
  }
  CHECK(!read(""));
  CHECK(!read("text"));
}

}  // namespace
}  // namespace covey::testing
