// Images to arrays: views, orientations, limits, and hostile files.
#include "image_decoder.h"

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "encoded_images.h"
#include "wire_bytes.h"

namespace covey::testing {
namespace {

constexpr ImageSize kSize{45, 71};
constexpr std::uint64_t kMaxPixels = 1 << 20;

ImageSpec spec_of(ImageSize size, std::size_t channels = 3, Crop crop = Crop::none) {
  ImageSpec spec;
  spec.size = size;
  spec.channels = channels;
  spec.crop = crop;
  spec.max_pixels = kMaxPixels;
  return spec;
}

struct Decoded {
  ImageFault fault;
  std::vector<std::string> views;
};

Decoded decode(const ImageSpec& spec, const std::string& image, const RowKey& key = {},
               ImageDecoder& decoder = ImageDecoder::of_thread()) {
  const Exact data(image);
  std::vector<Exact> memory;
  std::vector<std::uint8_t*> out;
  for (std::size_t i = 0; i < spec.views; ++i)
    memory.emplace_back(std::string(spec.bytes(), '\x5a'));
  for (Exact& each : memory) out.push_back(each.data());
  Decoded result{decoder.decode(spec, data.bytes(), key, out.data()), {}};
  for (const Exact& each : memory) result.views.push_back(text(each.bytes()));
  return result;
}

std::string pixels_of(const ImageSpec& spec, const std::string& image, const RowKey& key = {}) {
  const Decoded result = decode(spec, image, key);
  CHECK(!result.fault);
  return result.views[0];
}

ImageError error_of(const ImageSpec& spec, const std::string& image) {
  return decode(spec, image).fault.code;
}

// An image of each kind that this build decodes.
std::vector<std::string> images(ImageSize size = kSize) {
  std::vector<std::string> all;
#if defined(COVEY_JPEG)
  for (const JpegKind& kind : jpeg_kinds()) all.push_back(encode_jpeg(kind, size));
#endif
#if defined(COVEY_PNG)
  for (const PngKind& kind : png_kinds()) all.push_back(encode_png(kind, size));
#endif
  (void)size;
  return all;
}

std::string mirrored(const std::string& pixels, ImageSize size) {
  const std::size_t pixel = pixels.size() / size.pixels();
  std::string out;
  for (std::uint32_t y = 0; y < size.height; ++y) {
    for (std::uint32_t x = size.width; x-- > 0;) {
      out += pixels.substr((std::size_t{y} * size.width + x) * pixel, pixel);
    }
  }
  return out;
}

std::string cut(const std::string& pixels, ImageSize size, const Box& box) {
  const std::size_t pixel = pixels.size() / size.pixels();
  std::string out;
  for (std::uint32_t y = box.top; y < box.bottom(); ++y) {
    out += pixels.substr((std::size_t{y} * size.width + box.left) * pixel, box.width * pixel);
  }
  return out;
}

std::string framed(const ImageSpec& spec, const std::string& pixels, ImageSize size) {
  const Exact in(pixels);
  Exact result(std::string(spec.bytes(), '\x5a'));
  std::uint8_t* const out = result.data();
  ImageDecoder decoder;
  CHECK(!decoder.frame(spec, in.bytes().begin, size, {}, &out));
  return text(result.bytes());
}

[[maybe_unused]] double mean_distance(const std::string& a, const std::string& b, int& most) {
  double sum = 0;
  most = a.size() == b.size() ? 0 : 256;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const int levels = std::abs(static_cast<std::uint8_t>(a[i]) - static_cast<std::uint8_t>(b[i]));
    most = std::max(most, levels);
    sum += levels;
  }
  return sum / static_cast<double>(a.size());
}

TEST(formats_without_a_decoder_are_unsupported) {
  const ImageSpec spec = spec_of({8, 8}, 3, Crop::squash);
  for (const char* const other : {"", "text", "GIF89a", "RIFF....WEBP", "BM", "\xff\xd8"}) {
    CHECK(error_of(spec, other) == ImageError::unsupported);
  }
  const std::string jpeg = "\xff\xd8\xff\xe0", png = "\x89PNG\r\n\x1a\n";
  CHECK(error_of(spec, jpeg) ==
        (jpeg_library() == nullptr ? ImageError::unsupported : ImageError::corrupt));
  CHECK(error_of(spec, png) ==
        (png_library() == nullptr ? ImageError::unsupported : ImageError::corrupt));
  CHECK((make_jpeg_reader() == nullptr) == (jpeg_library() == nullptr));
  CHECK((make_png_reader() == nullptr) == (png_library() == nullptr));
}

// Every view is the box of a full decode, resized.
TEST(views_equal_separate_crops) {
  for (const std::string& image : images()) {
    const std::string full = pixels_of(spec_of(kSize), image);
    for (const Crop crop : {Crop::squash, Crop::center, Crop::random}) {
      ImageSpec spec = spec_of({13, 17}, 3, crop);
      spec.scale = {0.02, 1};
      spec.ratio = {0.2, 5};
      spec.flip = true;
      spec.views = 3;
      for (std::uint64_t row = 0; row < 3; ++row) {
        const RowKey key{5, 1, row};
        const Decoded result = decode(spec, image, key);
        CHECK(!result.fault);
        for (std::size_t view = 0; view < spec.views; ++view) {
          const auto [box, is_flipped] = choose_framing(spec, kSize, key, view);
          const ImageSpec plain = spec_of(spec.size, 3, Crop::squash);
          const std::string expected =
              framed(plain, cut(full, kSize, box), {box.height, box.width});
          CHECK(result.views[view] == (is_flipped ? mirrored(expected, spec.size) : expected));
        }
        spec.views = 1;
        CHECK(pixels_of(spec, image, key) == result.views[0]);
        spec.views = 3;
      }
    }
  }
}

TEST(flips_of_complete_images) {
  for (const std::string& image : images()) {
    ImageSpec spec = spec_of(kSize);
    const std::string plain = pixels_of(spec, image);
    spec.flip = true;
    for (std::uint64_t row = 0; row < 4; ++row) {
      const bool is_flipped = choose_framing(spec, kSize, {0, 0, row}, 0).is_flipped;
      CHECK(pixels_of(spec, image, {0, 0, row}) == (is_flipped ? mirrored(plain, kSize) : plain));
    }
  }
}

// The results of an image do not depend on the images before it.
TEST(images_are_independent) {
  const std::vector<std::string> all = images();
  if (all.empty()) return;
  std::mt19937 random(4);
  ImageDecoder reused;
  for (int round = 0; round < 300; ++round) {
    std::string image = all[random() % all.size()];
    if (round % 3 == 0) image.resize(random() % image.size());
    if (round % 3 == 1) image[random() % image.size()] ^= static_cast<char>(1 << random() % 8);
    ImageSpec spec = spec_of({20, 11}, random() % 2 == 0 ? 3 : 1, Crop::random);
    spec.views = 1 + random() % 2;
    spec.fast = random() % 2 == 0;
    ImageDecoder fresh;
    const RowKey key{1, 2, random()};
    const Decoded expected = decode(spec, image, key, fresh),
                  found = decode(spec, image, key, reused);
    CHECK(found.fault.code == expected.fault.code && found.fault.size == expected.fault.size);
    CHECK(found.fault.message == expected.fault.message);
    if (!found.fault) CHECK(found.views == expected.views);
  }
}

#if defined(COVEY_JPEG)

// libjpeg keeps tables for later images.
TEST(tables_of_an_earlier_image_are_not_used) {
  JpegKind coarse, bare;
  coarse.quality = 5;
  bare.has_tables = false;
  const std::string image = encode_jpeg(bare, kSize);
  ImageDecoder decoder;
  CHECK(decode(spec_of(kSize), image, {}, decoder).fault.code == ImageError::corrupt);
  CHECK(!decode(spec_of(kSize), encode_jpeg(coarse, kSize), {}, decoder).fault);
  CHECK(decode(spec_of(kSize), image, {}, decoder).fault.code == ImageError::corrupt);
}

// The reduced scale of `fast` changes the pixels of a picture by few levels, although it has
// waves of four pixels after the reduction. A box that is misplaced by half a pixel changes many by
// more than 50.
TEST(fast_decodes_are_similar) {
  const ImageSize large{360, 480};
  for (const bool is_progressive : {false, true}) {
    for (const int h : {1, 2}) {
      JpegKind kind;
      kind.h = kind.v = h;
      kind.is_progressive = is_progressive;
      const std::string image = encode_jpeg(kind, large);
      for (const std::uint32_t reduction : {2U, 4U, 8U}) {
        for (const Crop crop : {Crop::squash, Crop::random}) {
          ImageSpec spec = spec_of({large.height / reduction, large.width / reduction}, 3, crop);
          if (crop == Crop::random) spec.size = {40, 40};
          spec.scale = {0.3, 1};
          const std::string exact = pixels_of(spec, image, {0, 0, reduction});
          spec.fast = true;
          const std::string fast = pixels_of(spec, image, {0, 0, reduction});
          CHECK(fast != exact);
          int most;
          CHECK(mean_distance(fast, exact, most) <= 6);
          CHECK(most <= 20);
        }
      }
    }
  }
}

TEST(fast_decodes_of_small_boxes_are_exact) {
  for (const JpegKind& kind : jpeg_kinds()) {
    const std::string image = encode_jpeg(kind, kSize);
    ImageSpec spec = spec_of({23, 36}, 3, Crop::random);  // boxes are below twice the size
    for (std::uint64_t row = 0; row < 5; ++row) {
      spec.fast = false;
      const std::string exact = pixels_of(spec, image, {0, 0, row});
      spec.fast = true;
      CHECK(pixels_of(spec, image, {0, 0, row}) == exact);
    }
  }
}

// The position of the frame header (SOF0 or SOF2).
std::size_t frame_of(const std::string& image) {
  const std::size_t first = image.find("\xff\xc0"), second = image.find("\xff\xc2");
  return std::min(first, second);
}

TEST(twelve_bits_are_unsupported) {
  for (const bool is_progressive : {false, true}) {
    JpegKind kind;
    kind.is_progressive = is_progressive;
    std::string image = encode_jpeg(kind, kSize);
    image[frame_of(image) + 4] = 12;
    CHECK(error_of(spec_of(kSize), image) == ImageError::unsupported);
    CHECK(error_of(spec_of({9, 9}, 3, Crop::random), image) == ImageError::unsupported);
  }
}

TEST(images_without_a_height_are_corrupt) {
  std::string image = encode_jpeg({}, kSize);  // it would follow the first scan (DNL)
  image[frame_of(image) + 5] = image[frame_of(image) + 6] = 0;
  CHECK(error_of(spec_of(kSize), image) == ImageError::corrupt);
}

TEST(number_of_scans_is_limited) {
  JpegKind kind;
  kind.is_progressive = true;
  const std::string image = encode_jpeg(kind, kSize);
  const std::string expected = pixels_of(spec_of(kSize), image);
  const std::size_t last = image.rfind("\xff\xda");
  const std::string scan = image.substr(last, image.size() - 2 - last);
  for (const int count : {100, 700, 20'000}) {
    std::string bomb = image.substr(0, last);
    for (int i = 0; i < count; ++i) bomb += scan;
    const Decoded result = decode(spec_of(kSize), bomb + "\xff\xd9");
    CHECK(result.fault.code == (count == 100 ? ImageError::none : ImageError::scans));
  }
}

TEST(jpeg_data_after_the_image_is_ignored) {
  for (const JpegKind& kind : jpeg_kinds()) {
    const std::string image = encode_jpeg(kind, kSize);
    const std::string expected = pixels_of(spec_of(kSize), image);
    for (const std::string& after : {std::string("\0\0\xff", 3), std::string(5000, 'x'), image}) {
      CHECK(pixels_of(spec_of(kSize), image + after) == expected);
    }
  }
}

#endif

// A cut image is a fault, or has lost nothing that is needed.
TEST(truncated_images) {
  for (const std::string& image : images({11, 13})) {
    for (const Crop crop : {Crop::none, Crop::random}) {
      ImageSpec spec = spec_of({11, 13}, 3, crop);
      const std::string expected = pixels_of(spec, image);
      int faults = 0;
      for (std::size_t size = 0; size < image.size(); ++size) {
        const Decoded result = decode(spec, image.substr(0, size));
        if (!result.fault) {
          CHECK(result.views[0] == expected);
          continue;
        }
        ++faults;
        CHECK(result.fault.code == (size < 8 && result.fault.code == ImageError::unsupported
                                        ? ImageError::unsupported
                                        : ImageError::corrupt));
      }
      CHECK(faults > static_cast<int>(image.size() / 4));
    }
  }
}

// Wrong bits: results are faults or pixels, and never more.
TEST(corrupt_images) {
  std::mt19937 random(8);
  for (const std::string& image : images({11, 13})) {
    for (int round = 0; round < 60; ++round) {
      std::string changed = image;
      for (std::uint32_t i = 0; i <= random() % 3; ++i) {
        changed[random() % changed.size()] = static_cast<char>(random());
      }
      ImageSpec spec = spec_of({7, 6}, 1 + random() % 4, static_cast<Crop>(1 + random() % 3));
      spec.orient = spec.fast = round % 2 == 0;
      spec.is_deep = round % 5 == 0;
      decode(spec, changed);
    }
  }
}

TEST(exif_orientations) {
  for (int orientation = 1; orientation <= 8; ++orientation) {
    std::vector<std::pair<std::string, std::string>> pairs;  // with and without EXIF
#if defined(COVEY_JPEG)
    JpegKind jpeg;
    jpeg.h = 2;
    pairs.emplace_back("", encode_jpeg(jpeg, kSize));
    jpeg.orientation = orientation;
    pairs.back().first = encode_jpeg(jpeg, kSize);
    jpeg.components = 4;
    pairs.emplace_back(encode_jpeg(jpeg, kSize), "");
    jpeg.orientation = 0;
    pairs.back().second = encode_jpeg(jpeg, kSize);
#endif
#if defined(COVEY_PNG)
    PngKind png;
    pairs.emplace_back("", encode_png(png, kSize));
    png.orientation = orientation;
    pairs.back().first = encode_png(png, kSize);
#endif
    const ImageSize turned = orientation >= 5 ? ImageSize{kSize.width, kSize.height} : kSize;
    for (const auto& [image, plain] : pairs) {
      for (const std::size_t channels : {1, 3}) {
        const std::string stored = pixels_of(spec_of(kSize, channels), plain);
        CHECK(pixels_of(spec_of(kSize, channels), image) == stored);
        ImageSpec spec = spec_of(turned, channels);
        spec.orient = true;
        std::string expected;
        const std::uint32_t bottom = kSize.height - 1, right = kSize.width - 1;
        for (std::uint32_t y = 0; y < turned.height; ++y) {
          for (std::uint32_t x = 0; x < turned.width; ++x) {
            const std::pair<std::uint32_t, std::uint32_t> from[] = {
                {y, x}, {y, right - x},  {bottom - y, right - x}, {bottom - y, x},
                {x, y}, {bottom - x, y}, {bottom - x, right - y}, {x, right - y}};
            const auto [in_y, in_x] = from[orientation - 1];
            expected +=
                stored.substr((std::size_t{in_y} * kSize.width + in_x) * channels, channels);
          }
        }
        CHECK(pixels_of(spec, image) == expected);
        // Boxes are those of the image as it is seen.
        spec.crop = Crop::random;
        spec.size = {10, 20};
        const Box box = choose_framing(spec, turned, {3, 3, 3}, 0).box;
        CHECK(pixels_of(spec, image, {3, 3, 3}) == framed(spec_of({10, 20}, channels, Crop::squash),
                                                          cut(expected, turned, box),
                                                          {box.height, box.width}));
      }
    }
  }
}

TEST(images_of_another_shape) {
  for (const std::string& image : images()) {
    ImageSpec spec = spec_of({kSize.height, kSize.width + 1});
    Decoded result = decode(spec, image);
    CHECK(result.fault.code == ImageError::size && result.fault.size == kSize);
    spec = spec_of({5, 5}, 3, Crop::squash);
    spec.required = {kSize.height, 0};
    CHECK(!decode(spec, image).fault);
    spec.required = {0, kSize.width - 1};
    CHECK(error_of(spec, image) == ImageError::size);
    spec.required = {};
    spec.as_stored = true;
    int matches = 0;
    for (const std::size_t channels : {1, 2, 3, 4}) {
      spec.channels = channels;
      result = decode(spec, image);
      matches += result.fault.code != ImageError::channels;
      if (result.fault.code == ImageError::channels) CHECK(result.fault.channels != channels);
    }
    CHECK(matches == 1);
  }
}

TEST(large_images_are_rejected_before_they_are_decoded) {
  const ImageSpec spec = spec_of({5, 5}, 3, Crop::squash);
  std::vector<std::pair<std::string, ImageSize>> large;
#if defined(COVEY_JPEG)
  for (const JpegKind& kind : jpeg_kinds()) {
    std::string image = encode_jpeg(kind, {9, 9});
    const std::string size = "\xff\xdc\xff\xdc";
    image.replace(frame_of(image) + 5, 4, size);
    large.push_back({image, {0xffdc, 0xffdc}});
  }
#endif
#if defined(COVEY_PNG)
  for (const std::uint32_t side : {1025U, 100'000'000U, 0x7fffffffU}) {
    for (const int interlace : {0, 1}) {
      const std::string rest{8, 2, 0, 0, static_cast<char>(interlace)};
      const std::string image = encode_png({}, {9, 9});
      large.push_back({image.substr(0, 8) +
                           png_chunk("IHDR", big_endian(side) + big_endian(1024) + rest) +
                           image.substr(33),
                       {1024, side}});
    }
  }
#endif
  for (const auto& [image, size] : large) {
    ImageDecoder decoder;
    const Decoded result = decode(spec, image, {}, decoder);
    CHECK(result.fault.code == ImageError::too_large && result.fault.size == size);
    CHECK(decoder.kept_bytes() == 0);
  }
}

#if defined(COVEY_PNG)

TEST(ancillary_chunks_of_png_are_ignored) {
  const std::string image = encode_png({}, kSize), head = image.substr(0, 33);
  const std::string expected = pixels_of(spec_of(kSize), image);
  const std::string invalid = std::string("name\0\0not zlib", 14);
  for (const char* const type : {"iCCP", "zTXt", "iTXt", "tEXt", "sPLT", "hIST", "bKGD", "gAMA",
                                 "cHRM", "pCAL", "sCAL", "tIME", "eXIf", "acTL", "fcTL", "prVt"}) {
    for (const std::string& content : {std::string(), invalid, std::string(9 << 20, 'x')}) {
      const std::string chunk = png_chunk(type, content);
      CHECK(pixels_of(spec_of(kSize), head + chunk + image.substr(33)) == expected);
    }
  }
  // A critical chunk that is not known, and a checksum that does not match.
  CHECK(error_of(spec_of(kSize), head + png_chunk("ABCD", "x") + image.substr(33)) ==
        ImageError::corrupt);
  std::string changed = head + png_chunk("tEXt", "a\0b") + image.substr(33);
  changed[head.size() + 9] ^= 1;
  CHECK(error_of(spec_of(kSize), changed) == ImageError::corrupt);
}

TEST(memory_after_a_large_image_is_released) {
  const ImageSize large{5000, 4000};
  PngKind kind;
  kind.color = 0;
  kind.bits = 1;
  kind.orientation = 6;
  ImageSpec spec = spec_of({8, 8}, 3, Crop::squash);
  spec.orient = true;
  spec.max_pixels = large.pixels();
  ImageDecoder decoder;
  CHECK(!decode(spec, encode_png(kind, large), {}, decoder).fault);
  CHECK(decoder.kept_bytes() <= kMaxKeptBytes);
  CHECK(!decode(spec, encode_png(kind, kSize), {}, decoder).fault);
  CHECK(decoder.kept_bytes() > 0);
}

// One column, and as many rows as fit into the limit of pixels.
TEST(images_of_extreme_shape) {
  for (const bool is_interlaced : {false, true}) {
    for (const ImageSize size : {ImageSize{3'000'000, 1}, {1, 3'000'000}}) {
      PngKind kind;
      kind.color = 0;
      kind.is_interlaced = is_interlaced;
      const std::string image = encode_png(kind, size);
      ImageSpec spec = spec_of({200, 200}, 3, Crop::squash);
      spec.max_pixels = size.pixels();
      const ImageError expected = size.width == 1 ? ImageError::memory : ImageError::none;
      CHECK(error_of(spec, image) == expected);
      spec.size = {1, 1};
      CHECK(error_of(spec, image) == ImageError::none);
    }
  }
}

#endif

// Decoders belong to threads, and end with them.
TEST(decoders_of_threads) {
  const std::vector<std::string> all = images({11, 13});
  ImageSpec spec = spec_of({6, 5}, 3, Crop::random);
  std::vector<std::string> expected;
  for (const std::string& image : all) expected.push_back(pixels_of(spec, image));
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < wrong.size(); ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t i = 0; i < all.size(); ++i) {
        const std::size_t at = (i + 7 * thread) % all.size();
        wrong[thread] += decode(spec, all[at]).views[0] != expected[at];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4));
}

}  // namespace
}  // namespace covey::testing
