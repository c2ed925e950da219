// Encoded images of every kind, made with libjpeg and libpng. Without these libraries, images are
// empty strings.
#pragma once

#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "image.h"

#if defined(COVEY_JPEG)
extern "C" {
#include <jpeglib.h>
}
#endif
#if defined(COVEY_PNG)
#include <png.h>
#endif

namespace covey::testing {

// Waves with noise: neighbouring pixels and channels differ, but not as in noise alone, which
// compression changes beyond recognition.
inline std::vector<std::uint8_t> picture(ImageSize size, std::size_t channels,
                                         std::uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> pixels;
  for (std::uint32_t y = 0; y < size.height; ++y) {
    for (std::uint32_t x = 0; x < size.width; ++x) {
      for (std::size_t c = 0; c < channels; ++c) {
        const double wave = std::sin(x / 5. + static_cast<double>(c)) +
                            std::cos(y / 7. + 2. * static_cast<double>(c));
        pixels.push_back(static_cast<std::uint8_t>(128 + 55 * wave + random() % 16));
      }
    }
  }
  return pixels;
}

struct JpegKind {
  int components = 3;        // 1, 3 or 4
  bool is_converted = true;  // to YCbCr or YCCK
  int h = 1, v = 1;          // the sampling factors of the first component
  bool is_progressive = false;
  bool is_arithmetic = false;
  unsigned restart = 0;  // in MCUs
  int quality = 90;
  int orientation = 0;  // of EXIF; 0 for none
  bool has_tables = true;
};

inline std::string exif_segment(int orientation) {
  const char bytes[] = {
      'E', 'x', 'i', 'f', 0,    0, 'M', 'M', 0, '*', 0, 0, 0,
      8,   0,   1,   1,   0x12, 0, 3,   0,   0, 0,   1, 0, static_cast<char>(orientation),
      0,   0,   0,   0,   0,    0};
  return {bytes, sizeof bytes};
}

#if defined(COVEY_JPEG)

inline std::string encode_jpeg(const JpegKind& kind, ImageSize size, std::uint32_t seed = 1) {
  const std::vector<std::uint8_t> pixels =
      picture(size, static_cast<std::size_t>(kind.components), seed);
  jpeg_compress_struct info{};
  jpeg_error_mgr error{};
  info.err = jpeg_std_error(&error);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&info, &memory, &bytes);
  info.image_height = size.height;
  info.image_width = size.width;
  info.input_components = kind.components;
  info.in_color_space = kind.components == 1   ? JCS_GRAYSCALE
                        : kind.components == 3 ? JCS_RGB
                                               : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, kind.quality, TRUE);
  if (kind.components == 3 && !kind.is_converted) jpeg_set_colorspace(&info, JCS_RGB);
  if (kind.components == 4 && kind.is_converted) jpeg_set_colorspace(&info, JCS_YCCK);
  for (int c = 0; c < info.num_components; ++c) {
    info.comp_info[c].h_samp_factor = c == 0 || c == 3 ? kind.h : 1;
    info.comp_info[c].v_samp_factor = c == 0 || c == 3 ? kind.v : 1;
  }
  info.restart_interval = kind.restart;
  info.arith_code = kind.is_arithmetic ? TRUE : FALSE;
  if (kind.is_progressive) jpeg_simple_progression(&info);
  if (!kind.has_tables) jpeg_suppress_tables(&info, TRUE);
  jpeg_start_compress(&info, kind.has_tables ? TRUE : FALSE);
  if (kind.orientation != 0) {
    const std::string exif = exif_segment(kind.orientation);
    jpeg_write_marker(&info, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(exif.data()),
                      static_cast<unsigned>(exif.size()));
  }
  const std::size_t row = size.width * static_cast<std::size_t>(kind.components);
  for (std::uint32_t y = 0; y < size.height; ++y) {
    auto* from = const_cast<JSAMPROW>(pixels.data() + y * row);
    jpeg_write_scanlines(&info, &from, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string encoded(reinterpret_cast<char*>(memory), bytes);
  std::free(memory);
  return encoded;
}

#else

inline std::string encode_jpeg(const JpegKind&, ImageSize, std::uint32_t = 1) { return {}; }

#endif

inline std::vector<JpegKind> jpeg_kinds() {
  std::vector<JpegKind> kinds;
  for (const bool is_progressive : {false, true}) {
    const int factors[][2] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {1, 2}, {1, 4}, {3, 1}};
    for (const auto& [h, v] : factors) {
      for (const unsigned restart : {0, 1, 3}) {
        JpegKind kind;
        kind.h = h;
        kind.v = v;
        kind.restart = restart;
        kind.is_progressive = is_progressive;
        kinds.push_back(kind);
      }
    }
    for (const int components : {1, 4}) {
      JpegKind kind;
      kind.components = components;
      kind.is_progressive = is_progressive;
      kind.is_converted = false;
      kinds.push_back(kind);
      if (components != 4) continue;
      kind.is_converted = true;
      kind.h = kind.v = 2;
      kinds.push_back(kind);
    }
    JpegKind rgb;
    rgb.is_converted = false;
    rgb.is_progressive = is_progressive;
    kinds.push_back(rgb);
  }
  return kinds;
}

inline std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

inline std::string png_chunk(const std::string& type, const std::string& content) {
  const std::string body = type + content;
  std::uint32_t crc = ~std::uint32_t{0};
  for (const char byte : body) {
    crc ^= static_cast<std::uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320U : 0U);
  }
  return big_endian(static_cast<std::uint32_t>(content.size())) + body + big_endian(~crc);
}

struct PngKind {
  int color = 2;  // 0 grayscale, 2 RGB, 3 palette, 4 grayscale and alpha, 6 RGBA
  int bits = 8;
  bool is_interlaced = false;
  bool has_transparency = false;  // a tRNS chunk
  int orientation = 0;
};

inline std::size_t png_channels(const PngKind& kind) {
  constexpr std::size_t kChannels[] = {1, 0, 3, 1, 2, 0, 4};
  return kChannels[kind.color];
}

#if defined(COVEY_PNG)

inline std::string encode_png(const PngKind& kind, ImageSize size, std::uint32_t seed = 1) {
  const std::size_t row =
      (size.width * png_channels(kind) * static_cast<std::size_t>(kind.bits) + 7) / 8;
  std::vector<std::uint8_t> pixels =
      picture({size.height, static_cast<std::uint32_t>(row)}, 1, seed);
  std::string encoded;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &encoded,
      [](png_structp png, png_bytep bytes, std::size_t count) {
        static_cast<std::string*>(png_get_io_ptr(png))
            ->append(reinterpret_cast<char*>(bytes), count);
      },
      nullptr);
  png_set_user_limits(png, 0x7fffffff, 0x7fffffff);
  png_set_IHDR(png, info, size.width, size.height, kind.bits, kind.color,
               kind.is_interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (kind.color == 3) {
    std::vector<png_color> palette;
    std::vector<png_byte> alpha;
    for (int i = 0; i < 1 << kind.bits; ++i) {
      palette.push_back({static_cast<png_byte>(i * 37), static_cast<png_byte>(i * 91 + 5),
                         static_cast<png_byte>(255 - i)});
      alpha.push_back(static_cast<png_byte>(i * 11));
    }
    png_set_PLTE(png, info, palette.data(), static_cast<int>(palette.size()));
    if (kind.has_transparency) {
      png_set_tRNS(png, info, alpha.data(), static_cast<int>(alpha.size()), nullptr);
    }
  } else if (kind.has_transparency) {
    png_color_16 color{};
    color.gray = color.red = color.green = color.blue = 1;
    png_set_tRNS(png, info, nullptr, 0, &color);
  }
  if (kind.orientation != 0) {
    std::string exif = exif_segment(kind.orientation).substr(6);
    png_set_eXIf_1(png, info, static_cast<png_uint_32>(exif.size()),
                   reinterpret_cast<png_bytep>(exif.data()));
  }
  std::vector<png_bytep> rows;
  for (std::uint32_t y = 0; y < size.height; ++y) rows.push_back(pixels.data() + y * row);
  png_write_info(png, info);
  png_write_image(png, rows.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return encoded;
}

#else

inline std::string encode_png(const PngKind&, ImageSize, std::uint32_t = 1) { return {}; }

#endif

inline std::vector<PngKind> png_kinds() {
  std::vector<PngKind> kinds;
  for (const bool is_interlaced : {false, true}) {
    for (const bool has_transparency : {false, true}) {
      const int forms[][2] = {{0, 1},  {0, 2}, {0, 4}, {0, 8}, {0, 16}, {2, 8},
                              {2, 16}, {3, 1}, {3, 2}, {3, 4}, {3, 8}};
      for (const auto& [color, bits] : forms) {
        kinds.push_back({color, bits, is_interlaced, has_transparency, 0});
      }
    }
    for (const int color : {4, 6}) {
      for (const int bits : {8, 16}) kinds.push_back({color, bits, is_interlaced, false, 0});
    }
  }
  return kinds;
}

}  // namespace covey::testing
