#include "image_header.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace covey {
namespace {

using std::size_t;
using std::uint32_t;
using std::uint8_t;

// Numbers at an offset that the caller has checked.
uint32_t big16(const uint8_t* at) noexcept { return uint32_t{at[0]} << 8 | at[1]; }
uint32_t big32(const uint8_t* at) noexcept { return big16(at) << 16 | big16(at + 2); }
uint32_t little16(const uint8_t* at) noexcept { return uint32_t{at[1]} << 8 | at[0]; }
uint32_t little24(const uint8_t* at) noexcept { return uint32_t{at[2]} << 16 | little16(at); }
uint32_t little32(const uint8_t* at) noexcept { return little16(at + 2) << 16 | little16(at); }

bool starts_with(Bytes data, std::string_view prefix) noexcept {
  return as_string(data).starts_with(prefix);
}

constexpr std::string_view kExif("Exif\0\0", 6);

// The orientation in IFD0 of a TIFF structure; 1 if there is no valid one.
//
//   "II*\0" or "MM\0*" | u32 offset of IFD0 ... u16 entries | entries of 12 bytes:
//   u16 tag | u16 type | u32 count | value, or its offset
uint8_t read_orientation(Bytes tiff) noexcept {
  constexpr uint32_t kTag = 0x0112, kShort = 3, kLong = 4;
  if (tiff.size() < 8) return 1;
  const bool big = starts_with(tiff, {"MM\0*", 4});
  if (!big && !starts_with(tiff, {"II*\0", 4})) return 1;
  const auto u16 = [big](const uint8_t* at) { return big ? big16(at) : little16(at); };
  const auto u32 = [big](const uint8_t* at) { return big ? big32(at) : little32(at); };
  const size_t directory = u32(tiff.begin + 4);
  if (directory > tiff.size() - 2) return 1;
  const size_t listed = u16(tiff.begin + directory);
  const size_t entries = std::min(listed, (tiff.size() - directory - 2) / 12);
  for (size_t i = 0; i < entries; ++i) {
    const uint8_t* const entry = tiff.begin + directory + 2 + 12 * i;
    if (u16(entry) != kTag) continue;
    const uint32_t type = u16(entry + 2);
    if ((type != kShort && type != kLong) || u32(entry + 4) != 1) return 1;
    const uint32_t value = type == kShort ? u16(entry + 8) : u32(entry + 8);
    return value >= 1 && value <= 8 ? static_cast<uint8_t>(value) : uint8_t{1};
  }
  return 1;
}

// Some writers put the prefix of a JPEG segment before the TIFF structure of other formats too.
uint8_t read_exif(Bytes exif) noexcept {
  if (starts_with(exif, kExif)) exif.begin += kExif.size();
  return read_orientation(exif);
}

constexpr uint8_t kSos = 0xda, kEoi = 0xd9;

// Returns the next marker of a JPEG that has a segment, or is invalid, and moves `at` after it; 0
// at the end of the data. libjpeg skips bytes other than 0xff, fill bytes (0xff 0xff) and stuffed
// zeros (0xff 0x00). TEM and RST have no segment.
uint8_t next_marker(const uint8_t*& at, const uint8_t* end) noexcept {
  while (at != end) {
    at = static_cast<const uint8_t*>(std::memchr(at, 0xff, static_cast<size_t>(end - at)));
    if (at == nullptr) break;
    while (at != end && *at == 0xff) ++at;
    if (at == end) break;
    const uint8_t marker = *at++;
    if (marker > 0x01 && (marker < 0xd0 || marker > 0xd7)) return marker;
  }
  at = end;
  return 0;
}

// Returns the segment of a marker, and moves `at` after it; nothing if it is truncated. The length
// includes itself. libjpeg skips nothing if it is smaller.
std::optional<Bytes> next_segment(const uint8_t*& at, const uint8_t* end) noexcept {
  if (end - at < 2) return std::nullopt;
  const size_t length = std::max<size_t>(big16(at), 2);
  if (static_cast<size_t>(end - at) < length) return std::nullopt;
  const Bytes segment{at + 2, at + length};
  at += length;
  return segment;
}

// Walks the segments from SOI to SOS.
std::optional<ImageHeader> read_jpeg(Bytes data) noexcept {
  ImageHeader header{.format = ImageFormat::jpeg};
  bool has_frame = false, has_exif = false;
  const uint8_t* at = data.begin + 2;
  for (;;) {
    const uint8_t marker = next_marker(at, data.end);
    if (marker == kSos) {
      if (!has_frame) return std::nullopt;
      return header;
    }
    // SOI, EOI, the end of the data, and the markers that libjpeg rejects.
    if (marker < 0xc0 || marker == 0xc8 || marker == 0xd8 || marker == kEoi ||
        (marker >= 0xde && marker <= 0xdf) || (marker >= 0xf0 && marker != 0xfe)) {
      return std::nullopt;
    }
    const std::optional<Bytes> found = next_segment(at, data.end);
    if (!found) return std::nullopt;
    const Bytes segment = *found;
    if (marker == 0xe1 && !has_exif && starts_with(segment, kExif)) {
      has_exif = true;
      header.orientation = read_exif(segment);
    }
    // SOF0 to SOF15, except DHT and DAC.
    if (marker > 0xcf || marker == 0xc4 || marker == 0xcc) continue;
    if (has_frame || segment.size() < 6) return std::nullopt;
    has_frame = true;
    header.bits = segment.begin[0];
    header.height = big16(segment.begin + 1);
    header.width = big16(segment.begin + 3);
    header.channels = segment.begin[5];
    const bool known = header.channels == 1 || header.channels == 3 || header.channels == 4;
    if (!known || segment.size() != 6 + 3 * size_t{header.channels} || header.bits < 2 ||
        header.bits > 16 || header.height == 0 || header.width == 0) {
      return std::nullopt;
    }
  }
}

// The CRC-32 of PNG chunks, without a table: only 17 bytes are checked.
uint32_t crc32(Bytes data) noexcept {
  uint32_t crc = ~uint32_t{0};
  for (const uint8_t* at = data.begin; at != data.end; ++at) {
    crc ^= *at;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320U : 0U);
  }
  return ~crc;
}

constexpr std::string_view kPngSignature("\x89PNG\r\n\x1a\n", 8);

// The orientation in the first eXIf chunk, which may follow the pixels.
//
//   u32 length | 4 bytes type | data | u32 CRC
uint8_t read_png_orientation(Bytes chunks) noexcept {
  while (chunks.size() >= 12) {
    const size_t length = big32(chunks.begin);
    if (length > chunks.size() - 12) return 1;
    const uint8_t* const type = chunks.begin + 4;
    if (std::memcmp(type, "eXIf", 4) == 0) return read_exif({type + 4, type + 4 + length});
    if (std::memcmp(type, "IEND", 4) == 0) return 1;
    chunks.begin += 12 + length;
  }
  return 1;
}

//   signature | IHDR: u32 13 | "IHDR" | u32 width | u32 height | u8 bits | u8 color type |
//   u8 compression | u8 filter | u8 interlace | u32 CRC
std::optional<ImageHeader> read_png(Bytes data) noexcept {
  constexpr size_t kHeaderEnd = 33;
  if (data.size() < kHeaderEnd) return std::nullopt;
  const uint8_t* const ihdr = data.begin + 8;
  if (big32(ihdr) != 13 || std::memcmp(ihdr + 4, "IHDR", 4) != 0) return std::nullopt;
  if (crc32({ihdr + 4, ihdr + 21}) != big32(ihdr + 21)) return std::nullopt;
  ImageHeader header{.format = ImageFormat::png,
                     .width = big32(ihdr + 8),
                     .height = big32(ihdr + 12),
                     .bits = ihdr[16]};
  // The bit depths of each color type, as a set of bits.
  constexpr uint32_t k1 = 1U << 1, k2 = 1U << 2, k4 = 1U << 4, k8 = 1U << 8, k16 = 1U << 16;
  uint32_t depths = 0;
  switch (ihdr[17]) {
    case 0:  // grayscale
      header.channels = 1;
      depths = k1 | k2 | k4 | k8 | k16;
      break;
    case 2:  // RGB
      header.channels = 3;
      depths = k8 | k16;
      break;
    case 3:  // palette
      header.channels = 3;
      depths = k1 | k2 | k4 | k8;
      break;
    case 4:  // grayscale and alpha
      header.channels = 2;
      depths = k8 | k16;
      break;
    case 6:  // RGBA
      header.channels = 4;
      depths = k8 | k16;
      break;
    default:
      return std::nullopt;
  }
  constexpr uint32_t kMaxSide = 0x7fffffff;
  const bool sized = header.width >= 1 && header.width <= kMaxSide && header.height >= 1 &&
                     header.height <= kMaxSide;
  if (!sized || header.bits > 16 || (depths >> header.bits & 1) == 0 || ihdr[18] != 0 ||
      ihdr[19] != 0 || ihdr[20] > 1) {
    return std::nullopt;
  }
  header.orientation = read_png_orientation({data.begin + kHeaderEnd, data.end});
  return header;
}

//   "GIF87a" or "GIF89a" | u16 width | u16 height | u8 flags | u8 background | u8 aspect
std::optional<ImageHeader> read_gif(Bytes data) noexcept {
  if (data.size() < 13) return std::nullopt;
  const ImageHeader header{.format = ImageFormat::gif,
                           .width = little16(data.begin + 6),
                           .height = little16(data.begin + 8),
                           .channels = 3,
                           .bits = 8};
  if (header.width == 0 || header.height == 0) return std::nullopt;
  return header;
}

//   "BM" | 12 bytes | u32 size of the second header, which selects its layout | width | height |
//   u16 planes | u16 bits of a pixel | u32 compression ... u32 masks of red, green, blue, alpha
std::optional<ImageHeader> read_bmp(Bytes data) noexcept {
  if (data.size() < 26) return std::nullopt;
  const uint32_t size = little32(data.begin + 14);
  const uint8_t* const at = data.begin + 18;
  ImageHeader header{.format = ImageFormat::bmp, .channels = 3, .bits = 8};
  uint32_t planes, pixel_bits;
  if (size == 12) {
    header.width = little16(at);
    header.height = little16(at + 2);
    planes = little16(at + 4);
    pixel_bits = little16(at + 6);
  } else {
    const bool known =
        size == 40 || size == 52 || size == 56 || size == 64 || size == 108 || size == 124;
    if (!known || data.size() - 14 < size) return std::nullopt;
    header.width = little32(at);
    header.height = little32(at + 4);
    // Rows from the top down have a negative height.
    if (header.height > 0x7fffffff) header.height = 0U - header.height;
    planes = little16(at + 8);
    pixel_bits = little16(at + 10);
    const uint32_t compression = little32(at + 12);
    constexpr uint32_t kBitFields = 3;
    if (compression > kBitFields) return std::nullopt;  // a JPEG or PNG for a printer
    if (pixel_bits == 32 && compression == kBitFields && size >= 56 && little32(at + 48) != 0) {
      header.channels = 4;
    }
  }
  const bool deep = pixel_bits == 16 || pixel_bits == 24 || pixel_bits == 32;
  const bool indexed = pixel_bits == 1 || pixel_bits == 4 || pixel_bits == 8;
  if (planes != 1 || !(deep || indexed) || header.width == 0 || header.width > 0x7fffffff ||
      header.height == 0 || header.height > 0x7fffffff) {
    return std::nullopt;
  }
  return header;
}

// The orientation in the first EXIF chunk.
//
//   4 bytes type | u32 length | data, padded to an even length
uint8_t read_webp_orientation(Bytes chunks) noexcept {
  while (chunks.size() >= 8) {
    const size_t length = little32(chunks.begin + 4);
    if (length > chunks.size() - 8) return 1;
    const uint8_t* const content = chunks.begin + 8;
    if (starts_with(chunks, "EXIF")) return read_exif({content, content + length});
    chunks.begin += std::min(8 + length + length % 2, chunks.size());
  }
  return 1;
}

//   "RIFF" | u32 length | "WEBP" | chunks, the first of which is "VP8 " (lossy), "VP8L" (lossless)
//   or "VP8X" (extended: alpha, animation, EXIF)
std::optional<ImageHeader> read_webp(Bytes data) noexcept {
  ImageHeader header{.format = ImageFormat::webp, .channels = 3, .bits = 8};
  const Bytes chunk{data.begin + 12, data.end};
  const bool lossless = starts_with(chunk, "VP8L");
  if (chunk.size() < (lossless ? 13U : 18U)) return std::nullopt;
  const uint8_t* const at = chunk.begin + 8;
  if (starts_with(chunk, "VP8 ")) {
    // A key frame, its start code, and two sizes of 14 bits with 2 bits of scale.
    if ((at[0] & 1) != 0 || std::memcmp(at + 3, "\x9d\x01\x2a", 3) != 0) return std::nullopt;
    header.width = little16(at + 6) & 0x3fff;
    header.height = little16(at + 8) & 0x3fff;
    if (header.width == 0 || header.height == 0) return std::nullopt;
  } else if (lossless) {
    // A signature, then width - 1 and height - 1 of 14 bits, 1 bit for alpha, 3 bits of version.
    const uint32_t packed = little32(at + 1);
    if (at[0] != 0x2f || packed >> 29 != 0) return std::nullopt;
    header.width = (packed & 0x3fff) + 1;
    header.height = (packed >> 14 & 0x3fff) + 1;
    if ((packed >> 28 & 1) != 0) header.channels = 4;
  } else if (starts_with(chunk, "VP8X")) {
    constexpr uint8_t kAlpha = 0x10, kExifFlag = 0x08;
    header.width = little24(at + 4) + 1;
    header.height = little24(at + 7) + 1;
    if ((at[0] & kAlpha) != 0) header.channels = 4;
    if ((at[0] & kExifFlag) != 0) header.orientation = read_webp_orientation(chunk);
  } else {
    return std::nullopt;
  }
  return header;
}

}  // namespace

const char* name_of(ImageFormat format) noexcept {
  constexpr const char* kNames[kImageFormats] = {"jpeg", "png", "gif", "bmp", "webp"};
  return kNames[static_cast<std::size_t>(format)];
}

std::size_t count_jpeg_scans(Bytes data) noexcept {
  std::size_t scans = 0;
  const uint8_t* at = data.begin;
  for (;;) {
    const uint8_t marker = next_marker(at, data.end);
    if (marker == 0 || marker == kEoi) return scans;
    if (marker == 0xd8) continue;  // SOI
    if (marker == kSos) ++scans;
    if (!next_segment(at, data.end)) return scans;
  }
}

std::size_t max_jpeg_scans(std::uint64_t pixels, std::uint64_t max_pixels) noexcept {
  constexpr std::uint64_t kScansOfLargest = 16, kMaxScans = 500;
  constexpr std::uint64_t kDefaultMaxPixels = 64'000'000, kMaxMaxPixels = std::uint64_t{1} << 48;
  const std::uint64_t largest = std::clamp(max_pixels, kDefaultMaxPixels, kMaxMaxPixels);
  const std::uint64_t scans = largest * kScansOfLargest / std::max<std::uint64_t>(pixels, 1);
  return static_cast<std::size_t>(std::min(scans, kMaxScans));
}

std::optional<ImageHeader> read_image_header(Bytes data) noexcept {
  if (data.size() < 13) return std::nullopt;  // the header of GIF is the shortest
  if (starts_with(data, "\xff\xd8\xff")) return read_jpeg(data);
  if (starts_with(data, kPngSignature)) return read_png(data);
  if (starts_with(data, "GIF87a") || starts_with(data, "GIF89a")) return read_gif(data);
  if (starts_with(data, "RIFF") && data.size() >= 12 &&
      std::memcmp(data.begin + 8, "WEBP", 4) == 0) {
    return read_webp(data);
  }
  if (starts_with(data, "BM")) return read_bmp(data);
  return std::nullopt;
}

}  // namespace covey
